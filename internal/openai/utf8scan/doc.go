// Package utf8scan tells whether text is UTF-8. A prompt that is not English is
// mostly characters of two to four bytes, which the standard library decodes one
// by one.
//
//	Valid ──▶ blocks (amd64 with AVX2)   64 bytes at a time, from 67 bytes on
//	      ──▶ utf8.Valid                 short text, and all of it on other processors
//
// utf8.Valid is the truth: blocks only passes what is UTF-8, and never refuses.
// The build tag purego leaves it out.
package utf8scan
