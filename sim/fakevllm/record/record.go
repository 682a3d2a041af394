// Package record keeps the requests that came to an engine.
package record

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
	Time   time.Time
	Method string
	Path   string
	Header http.Header
	Body   []byte // raw; nil when the client never sent it whole
}

// Record keeps the newest requests.
type Record struct {
	Limit int // how many, below 0 none

	mu    sync.Mutex // guards everything below
	bytes int
	list  []Request
}

// Add keeps a request and forgets what is too much.
func (rec *Record) Add(r *http.Request, body []byte) {
	if rec.Limit < 0 {
		return
	}
	req := Request{Time: time.Now(), Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.list = append(rec.list, req)
	rec.bytes += len(body)
	for len(rec.list) > rec.Limit || rec.bytes > recordBytes && len(rec.list) > 1 {
		rec.bytes -= len(rec.list[0].Body)
		rec.list[0] = Request{}
		rec.list = rec.list[1:]
	}
}

// All lists what is kept, oldest first. The bodies are shared: don't change them.
func (rec *Record) All() []Request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.Clone(rec.list)
}

// Forget empties it.
func (rec *Record) Forget() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.list, rec.bytes = nil, 0
}
