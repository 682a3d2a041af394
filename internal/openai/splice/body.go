package splice

import "bytes"

// Body is the content of one leg: slices of the client's body with a few new
// bytes between them. The zero Body is empty.
type Body struct {
	segments [][]byte
	size     int64
}

// Of wraps one slice.
func Of(b []byte) Body {
	var out Body
	out.add(b)
	return out
}

func (b *Body) add(seg []byte) {
	if len(seg) > 0 {
		b.segments = append(b.segments, seg)
		b.size += int64(len(seg))
	}
}

// Len returns the content length in bytes.
func (b Body) Len() int64 { return b.size }

// Segments returns the slices in order, for a vectored write; they must not be changed.
func (b Body) Segments() [][]byte { return b.segments }

// Bytes joins the segments; for tests and small bodies.
func (b Body) Bytes() []byte { return bytes.Join(b.segments, nil) }

// Splice replaces body[Start:End] by Text.
type Splice struct {
	Start, End int
	Text       []byte
}

// Assemble returns the body with the splices, which must be in order and must not overlap.
func Assemble(body []byte, splices []Splice) Body {
	out := Body{segments: make([][]byte, 0, 2*len(splices)+1)}
	at := 0
	for _, s := range splices {
		out.add(body[at:s.Start])
		out.add(s.Text)
		at = s.End
	}
	out.add(body[at:])
	return out
}
