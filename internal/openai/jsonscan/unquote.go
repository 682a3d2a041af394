package jsonscan

import (
	"strconv"
	"unicode/utf8"
)

// Unquote returns the text of a string token that the scanner accepted. The
// result shares the token's bytes unless it holds an escape.
func Unquote(tok []byte) []byte {
	tok = tok[1 : len(tok)-1]
	for i, c := range tok {
		if c == '\\' {
			return unescape(tok, i)
		}
	}
	return tok
}

func unescape(tok []byte, i int) []byte {
	out := append(make([]byte, 0, len(tok)), tok[:i]...)
	for i < len(tok) {
		c := tok[i]
		if c != '\\' {
			out = append(out, c)
			i++
			continue
		}
		i++
		switch tok[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(tok[i+1:])
			i += 4
			if r >= 0xd800 && r < 0xdc00 && i+6 < len(tok) && tok[i+1] == '\\' && tok[i+2] == 'u' {
				if lo := hex4(tok[i+3:]); lo >= 0xdc00 && lo < 0xe000 {
					r = 0x10000 + (r-0xd800)<<10 + (lo - 0xdc00)
					i += 6
				}
			}
			out = utf8.AppendRune(out, r)
		default: // '"', '\\', '/'
			out = append(out, tok[i])
		}
		i++
	}
	return out
}

func hex4(b []byte) rune {
	r, _ := strconv.ParseUint(string(b[:4]), 16, 16) // the scanner accepts hexadecimal digits only
	return rune(r)
}
