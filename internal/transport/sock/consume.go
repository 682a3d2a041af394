package sock

// Consume removes the first n bytes of pieces, and all empty pieces before the rest. If
// n ends inside a piece, it shortens that piece's slice.
func Consume(pieces [][]byte, n int) [][]byte {
	for len(pieces) > 0 {
		if n < len(pieces[0]) {
			pieces[0] = pieces[0][n:]
			break
		}
		n -= len(pieces[0])
		pieces = pieces[1:]
	}
	return pieces
}
