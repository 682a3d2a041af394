package record

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Entry is one line of a journal: the arrival of a request that generates, or its end.
type Entry struct {
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
	j.write(Entry{Seq: seq, ID: id})
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.write(Entry{Seq: seq, End: true})
	}
}

// write writes one line. A journal that cannot be written makes the run of a test worthless.
func (j *Journal) write(e Entry) {
	e.At = time.Now().UnixNano()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = j.w.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Sprintf("write the journal: %v", err))
	}
}
