package sock

// Cut takes the first n bytes off pieces, and with them all empty pieces in front
// of what is left. It changes the slice over the piece that n ends in.
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
