package fleet

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
)

// sharedWriter serializes the writes of several children to one writer.
type sharedWriter struct {
	mu sync.Mutex // held during one Write to w
	w  io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// maxLine bounds the buffered part of a line, in bytes. A longer line is split.
const maxLine = 64 << 10

// lineWriter forwards whole lines, each with a prefix. It is not safe for
// concurrent use.
type lineWriter struct {
	w       io.Writer
	prefix  string
	partial []byte
}

// Write never fails: a child must not stall or die because the terminal of its
// parent is closed.
func (l *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 && len(l.partial)+len(p) < maxLine {
			l.partial = append(l.partial, p...)
			break
		}
		if i < 0 {
			i = len(p) - 1
		}
		l.partial = append(l.partial, p[:i+1]...)
		l.flush()
		p = p[i+1:]
	}
	return n, nil
}

// flush writes the buffered bytes as a line.
func (l *lineWriter) flush() {
	if len(l.partial) == 0 {
		return
	}
	line := append([]byte(l.prefix), l.partial...)
	if line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	l.partial = l.partial[:0]
	_, _ = l.w.Write(line) // see Write
}

// tail returns the last lines of a file, from at most its last 32 KiB.
func tail(path string, lines int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	const window = 32 << 10
	raw = raw[max(0, len(raw)-window):]
	all := strings.Split(strings.TrimRight(string(raw), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
