package fakevllm

// maxFine is the longest of the fine tokens, in bytes.
const maxFine = 8

// TokenizeFine is Tokenize of an engine with Options.FineTokens: a run, which is a
// space and what follows it, is one token if it is a word of AppendWord or shorter
// than eight bytes. Every other is cut into tokens of one to eight bytes whose
// lengths depend on the bytes, so that a number of tokens is never a number of
// bytes. As with real vocabularies text that is added changes the last tokens only.
func TokenizeFine(text string) []int {
	return appendFine(make([]int, 0, len(text)/4+4), text)
}

func appendFine(dst []int, text string) []int {
	for i := 0; i < len(text); {
		end := i + 1
		for end < len(text) && text[end] != ' ' {
			end++
		}
		if run := text[i:end]; len(run) <= maxPiece+1 {
			if id, ok := wordID(run); ok {
				dst, i = append(dst, id), end
				continue
			}
		}
		for i < end {
			n := fineLen(text[i:end])
			dst = append(dst, pieceID(text[i:i+n]))
			i += n
		}
	}
	return dst
}

// fineLen is how long the first token of a run is.
func fineLen(run string) int {
	if len(run) < maxFine {
		return len(run)
	}
	return 1 + int(finish64(load64(run))%maxFine)
}
