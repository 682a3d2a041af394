// Package strscan finds where the text of a JSON string ends. A prompt is one
// string of up to some MiB, so this is what reading a request costs.
//
//	Text ──▶ 16 bytes, word by word     most keys end here
//	     ──▶ words, up to 64 bytes      and most short values here
//	     ──▶ blocks (amd64 with AVX2)   64 bytes at a time, escapes included
//	     ──▶ words                      the rest, and all of it on other processors
//
// words is the truth: it goes on wherever blocks stopped, and stops where text
// ends. blocks only has to stop early enough and between two characters. The
// build tag purego leaves it out.
package strscan
