// Package jsonscan checks JSON (RFC 8259) and finds members of objects as positions in the text.
package jsonscan
