package framing

import (
	"bytes"

	"github.com/pdmesh/pdmesh/internal/http1"
)

// maxLine is how much of a line is looked at. Only short ones say where a body ends.
const maxLine = 128

// lastBytes of a request line say its version.
const lastBytes = len("HTTP/1.1\r")

// place is where in a request a scanner is.
type place uint8

const (
	inHead place = iota
	inBody       // of known length
	inSize       // a chunk's size
	inChunk
	behindChunk // its CR LF
	inTrailer
	beyond // net/http refuses what comes, or what came
)

// scanner follows the requests on a connection, in any pieces. It sees their ends where
// net/http does, or net/http ends the connection.
type scanner struct {
	at    place
	left  int64           // of the body or chunk
	line  [maxLine]byte   // the current line, as far as it has come
	n     int             // bytes of it
	whole int             // the same, also those beyond maxLine
	last  [lastBytes]byte // of the line
	head  head
}

// head is what the lines of a head said so far.
type head struct {
	begun   bool // the request line was read
	old     bool // it is not of HTTP/1.1
	length  int64
	sized   bool // there was a Content-Length
	coded   bool // there was a Transfer-Encoding
	chunked bool // which was that
}

// take reads on, and gives how many of the bytes may be read by others: fewer than all
// if a line among them is wrong.
func (s *scanner) take(p []byte) int {
	for i := 0; i < len(p); {
		switch s.at {
		case beyond:
			return len(p)
		case inBody, inChunk:
			m := int(min(s.left, int64(len(p)-i)))
			i += m
			if s.left -= int64(m); s.left == 0 {
				s.endData()
			}
			continue
		case inHead, inSize, behindChunk, inTrailer:
		}
		if s.folded(p[i]) {
			return i
		}
		nl := bytes.IndexByte(p[i:], '\n')
		if nl < 0 {
			s.add(p[i:])
			return len(p)
		}
		s.add(p[i : i+nl])
		if !s.endLine() {
			return i
		}
		i += nl + 1
	}
	return len(p)
}

// folded reports the first byte of a line that goes on with the one before.
func (s *scanner) folded(b byte) bool {
	return s.at == inHead && s.head.begun && s.whole == 0 && (b == ' ' || b == '\t')
}

func (s *scanner) add(p []byte) {
	s.n += copy(s.line[s.n:], p)
	s.whole += len(p)
	if len(p) >= lastBytes {
		copy(s.last[:], p[len(p)-lastBytes:])
	} else {
		copy(s.last[:], s.last[len(p):])
		copy(s.last[lastBytes-len(p):], p)
	}
}

func (s *scanner) endData() {
	if s.at == inChunk {
		s.at = behindChunk
	} else {
		s.at = inHead
	}
}

// endLine takes a line, which ends here. false means that it is wrong.
func (s *scanner) endLine() bool {
	line, long := s.line[:s.n], s.whole > s.n
	if !long {
		line = bytes.TrimSuffix(line, []byte("\r"))
	}
	s.n, s.whole = 0, 0
	switch s.at {
	case inHead:
		return s.headLine(line, long)
	case inSize:
		s.size(line)
	case behindChunk:
		if s.at = inSize; len(line) > 0 {
			s.at = beyond
		}
	case inTrailer:
		if len(line) == 0 {
			s.at = inHead
		}
	case inBody, inChunk, beyond:
	}
	return true
}

func (s *scanner) headLine(line []byte, long bool) bool {
	h := &s.head
	switch {
	case !h.begun && len(line) == 0: // net/http skips some, and refuses more
		return true
	case !h.begun:
		h.begun, h.old = true, !bytes.HasSuffix(bytes.TrimSuffix(s.last[:], []byte("\r")), []byte("HTTP/1.1"))
		return true
	case len(line) == 0:
		s.endHead()
		return true
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	value = http1.Trim(value)
	switch {
	case http1.EqualFold(name, "content-length"):
		if h.sized || h.coded || long {
			return false
		}
		h.sized = true
		var ok bool
		h.length, ok = http1.ParseLength(value)
		return ok
	case http1.EqualFold(name, "transfer-encoding"):
		if h.sized || h.coded || h.old || long {
			return false
		}
		h.coded, h.chunked = true, http1.EqualFold(value, "chunked")
	}
	return true
}

// endHead goes to the body.
func (s *scanner) endHead() {
	h := s.head
	s.head = head{}
	switch {
	case h.chunked:
		s.at = inSize
	case h.coded:
		s.at = beyond
	case h.length > 0:
		s.at, s.left = inBody, h.length
	}
}

// size takes the line with a chunk's size, and maybe extensions. What is too large for
// any body is none.
func (s *scanner) size(line []byte) {
	n, digits := int64(0), 0
	for ; digits < len(line) && n <= 1<<56; digits++ {
		d := http1.HexDigit(line[digits])
		if d < 0 {
			break
		}
		n = n<<4 | d
	}
	switch {
	case digits == 0 || n > 1<<56:
		s.at = beyond
	case n == 0:
		s.at = inTrailer
	default:
		s.at, s.left = inChunk, n
	}
}
