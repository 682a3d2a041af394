package fakevllm

import (
	"encoding/json"
	"fmt"
	"io"
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

// requests keeps the newest requests.
type requests struct {
	Limit int // how many, below 0 none

	mu    sync.Mutex // guards everything below
	bytes int
	list  []Request
}

// Add keeps a request and forgets what is too much.
func (rec *requests) Add(r *http.Request, body []byte) {
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
func (rec *requests) All() []Request {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.Clone(rec.list)
}

// Forget empties it.
func (rec *requests) Forget() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.list, rec.bytes = nil, 0
}

// entry is one line of a journal: the arrival of a request that generates, or its end.
type entry struct {
	At  int64  `json:"at"`            // Unix time in nanoseconds
	Seq int64  `json:"seq"`           // number of the request in this process
	ID  string `json:"id,omitempty"`  // X-Request-Id; arrivals only
	End bool   `json:"end,omitempty"` // the request has ended, answered or not
}

// Journal writes a line of JSON when a request that generates arrives, and another one when it
// ends. A line is written before the request is processed, so that a process that is killed
// leaves the arrivals of its unfinished requests.
type Journal struct {
	mu  sync.Mutex // guards all fields
	w   io.Writer
	seq int64
}

// NewJournal returns a journal that writes to w.
func NewJournal(w io.Writer) *Journal { return &Journal{w: w} }

// Begin writes an arrival, and returns the function that writes the end. On nil it does nothing.
func (j *Journal) Begin(id string) (end func()) {
	if j == nil {
		return func() {}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.seq++
	seq := j.seq
	j.write(entry{Seq: seq, ID: id})
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.write(entry{Seq: seq, End: true})
	}
}

// write writes one line. A journal that cannot be written makes the run of a test worthless.
func (j *Journal) write(e entry) {
	e.At = time.Now().UnixNano()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.w.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("write the journal: %v", err))
	}
}
