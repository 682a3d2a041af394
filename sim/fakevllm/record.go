package fakevllm

import (
	"net/http"
	"slices"
	"sync"
	"time"
)

// recordBytes bounds the bodies kept in a record.
const recordBytes = 64 << 20

// Request is one request as it arrived, before anything looked at it.
type Request struct {
	Seq    int // order of arrival in this engine, from 1
	Time   time.Time
	Method string
	Path   string
	Header http.Header
	Body   []byte // raw; nil when the client never sent it whole
}

type record struct {
	limit int // RecordNone for none

	mu    sync.Mutex // guards everything below
	seq   int
	bytes int
	list  []Request
}

func (rec *record) add(r *http.Request, body []byte) {
	if rec.limit < 0 {
		return
	}
	req := Request{Time: time.Now(), Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.seq++
	req.Seq = rec.seq
	rec.list = append(rec.list, req)
	rec.bytes += len(body)
	for len(rec.list) > rec.limit || rec.bytes > recordBytes && len(rec.list) > 1 {
		rec.bytes -= len(rec.list[0].Body)
		rec.list[0] = Request{}
		rec.list = rec.list[1:]
	}
}

// Requests lists what arrived, oldest first, as far as the record reaches.
// The bodies are shared: don't change them.
func (s *Server) Requests() []Request {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	return slices.Clone(s.record.list)
}

// ForgetRequests empties the record.
func (s *Server) ForgetRequests() {
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	s.record.list, s.record.bytes = nil, 0
}
