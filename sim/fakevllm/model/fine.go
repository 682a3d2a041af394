package model

// maxFine is the longest of the fine tokens, in bytes.
const maxFine = 8

// TokenizeFine is Tokenize of an engine with Options.FineTokens: a run, which is a
// space and what follows it, is one token if it is a word of AppendWord or shorter
// than eight bytes. Every other is cut into tokens of one to eight bytes whose
// lengths depend on the bytes, so that a number of tokens is never a number of
// bytes. As with real vocabularies text that is added changes the last tokens only.
func TokenizeFine(text string) []int {
	return AppendFine(make([]int, 0, len(text)/4+4), text)
}

// AppendFine appends the tokens of TokenizeFine.
func AppendFine(dst []int, text string) []int {
	for i := 0; i < len(text); {
		end := i + 1
		for end < len(text) && text[end] != ' ' {
			end++
		}
		if run := text[i:end]; len(run) <= MaxPiece+1 {
			if id, ok := WordID(run); ok {
				dst, i = append(dst, id), end
				continue
			}
		}
		for i < end {
			n := end - i
			if n >= maxFine {
				n = 1 + int(Mix(load64(text[i:end]))%maxFine)
			}
			dst = append(dst, PieceID(text[i:i+n]))
			i += n
		}
	}
	return dst
}
