// Package httpfield tells which bytes may stand in the header lines of HTTP.
package httpfield

// IsToken reports the bytes of a header name or a method (RFC 9110, 5.6.2). It is
// asked for every byte of every name: two sets of bits, and nothing to jump over.
func IsToken(b byte) bool {
	const (
		digits  = 1<<10 - 1
		letters = 1<<26 - 1
		low     = digits<<'0' | 1<<'!' | 1<<'#' | 1<<'$' | 1<<'%' | 1<<'&' | 1<<'\'' | 1<<'*' | 1<<'+' | 1<<'-' | 1<<'.'
		high    = letters<<('A'-64) | letters<<('a'-64) | 1<<('^'-64) | 1<<('_'-64) | 1<<('`'-64) | 1<<('|'-64) | 1<<('~'-64)
	)
	set := uint64(low)
	if b >= 64 {
		set = high
	}
	return b < 128 && set>>(b&63)&1 != 0
}

// IsValue reports the bytes that a header's value may hold (RFC 9110, 5.5).
func IsValue(b byte) bool { return b >= ' ' && b != 0x7f || b == '\t' }
