package upstream

import "net/http"

// Space is memory for one answer, which whoever asks has made once for many: what
// is made anew for each comes out of the processor's caches. The zero Space is
// ready. It is in use from Do until the answer's Body was closed and nobody looks
// at its Header any more; Clear makes it ready for the next.
type Space struct {
	answer answer
	header http.Header
	values []string
}

// maxSpaceLines bounds the header lines for which memory is kept.
const maxSpaceLines = 16

// Clear lets go of all that the answer held.
func (s *Space) Clear() {
	s.answer = answer{}
	clear(s.header)
	clear(s.values)
}

// room gives an empty header for so many lines, and an array for their values.
func (s *Space) room(lines int) (http.Header, []string) {
	if s == nil || lines > maxSpaceLines {
		return make(http.Header, lines), make([]string, 0, lines)
	}
	if s.header == nil || len(s.values) < lines {
		s.header, s.values = make(http.Header, lines), make([]string, lines)
	}
	clear(s.header) // of an answer that nobody got
	return s.header, s.values[:0]
}

// Lines are header lines as they are sent, made and checked once for several
// requests. The zero Lines is empty: the first Request that has it fills it.
type Lines struct{ text []byte }

// Set makes the lines of a header. On an error there are none.
func (l *Lines) Set(h http.Header) (err error) {
	if l.text, err = appendHeader(l.text[:0], h); err != nil {
		l.text = l.text[:0]
	}
	return err
}

// Join makes them of others' and one more. On an error there are none.
func (l *Lines) Join(others *Lines, name, value string) (err error) {
	if l.text, err = appendField(append(l.text[:0], others.text...), name, value); err != nil {
		l.text = l.text[:0]
	}
	return err
}

// Text is what they are. Nobody may change it.
func (l *Lines) Text() []byte { return l.text }

// Clear makes them ready for another header, and tells how many bytes of memory
// they hold on to.
func (l *Lines) Clear() int {
	l.text = l.text[:0]
	return cap(l.text)
}
