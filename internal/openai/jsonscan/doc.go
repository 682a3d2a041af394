// Package jsonscan checks JSON (RFC 8259) and finds members of objects, as positions in
// the bytes that were sent. Its errors have the words of Python's parser.
package jsonscan
