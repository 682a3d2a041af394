// Package openai knows the little of the OpenAI API that the proxy must read
// or change; everything else stays the bytes that the client sent.
//
//	client body ──ParseRequest──▶ Request ──NewEdit──▶ Edit ──Body──▶ segments
//	             (one scan)       (spans)   (per leg)        (body slices + a few new bytes)
//
// A Request remembers where in the body the fields of interest stand. A leg is
// made by splicing: unchanged bytes are shared between all legs, never copied,
// so unknown fields, large integers and odd spacing reach the engine as sent.
//
// Most of a body is the text of strings; package strscan finds where it ends, and
// package utf8scan sees to it that it is UTF-8.
package openai
