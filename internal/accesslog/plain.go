package accesslog

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// bare tells that a value needs no quotes in key=value: it consists of letters,
// digits and -._/@^+:[] only.
func bare(v string) bool {
	if len(v) < 8 {
		return len(v) > 0 && bareWord(short(v))
	}
	for i := 0; i < len(v)-8; i += 8 {
		if !bareWord(word(v[i:])) {
			return false
		}
	}
	return bareWord(word(v[len(v)-8:]))
}

// plain tells that a value stands for itself between the quotes of JSON, and of
// Go: it is printable ASCII without quotes and backslashes.
func plain(v string) bool {
	if len(v) < 8 {
		return len(v) == 0 || plainWord(short(v))
	}
	for i := 0; i < len(v)-8; i += 8 {
		if !plainWord(word(v[i:])) {
			return false
		}
	}
	return plainWord(word(v[len(v)-8:]))
}

// word gives the first eight bytes.
func word(v string) uint64 {
	_ = v[7]
	return uint64(v[0]) | uint64(v[1])<<8 | uint64(v[2])<<16 | uint64(v[3])<<24 |
		uint64(v[4])<<32 | uint64(v[5])<<40 | uint64(v[6])<<48 | uint64(v[7])<<56
}

// half gives the first four bytes.
func half(v string) uint64 {
	_ = v[3]
	return uint64(v[0]) | uint64(v[1])<<8 | uint64(v[2])<<16 | uint64(v[3])<<24
}

// short gives a word of the bytes of a value that has 1 to 7. Some are in it more
// than once; where there are up to three, the digit 0, which is both bare and
// plain, fills it up.
func short(v string) uint64 {
	if len(v) >= 4 {
		return half(v) | half(v[len(v)-4:])<<32
	}
	const filled = ones * '0' &^ 0xffffff
	return filled | uint64(v[0]) | uint64(v[len(v)/2])<<8 | uint64(v[len(v)-1])<<16
}

// bareWord tells that all bytes of w may stand in a bare value.
//
// From a byte below 0x80, to which at most 0x80 is added, nothing is carried: the
// high bit of c+(0x80-n) tells that c is n or more, and so that of (c^d)+0x7f
// that c is not d. A byte from 0x80 on is refused by its own high bit, whatever
// it carries into the others.
func bareWord(w uint64) bool {
	yes := (w + ones*(0x80-'+')) & // from + on
		((w ^ ones*'?') + ones*(0x80-5)) & // not ;<=>?
		((w ^ ones*',') + ones*0x7f) & ((w ^ ones*'\\') + ones*0x7f) & ((w ^ ones*'`') + ones*0x7f)
	no := w | (w + ones*(0x80-'{'))
	return (yes&^no)&highs == highs
}

// plainWord tells that all bytes of w are printable ASCII, and none of them a
// quote or a backslash.
func plainWord(w uint64) bool {
	yes := (w + ones*(0x80-' ')) & ((w ^ ones*'"') + ones*0x7f) & ((w ^ ones*'\\') + ones*0x7f)
	no := w | (w + ones*(0x80-0x7f))
	return (yes&^no)&highs == highs
}
