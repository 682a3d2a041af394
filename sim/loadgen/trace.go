package loadgen

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// BlockTokens is the number of tokens of one block of a trace's prompts.
const BlockTokens = 512

// Entry is one request of a trace in the format of the Mooncake project. It has no
// text, only the prompt's length and the ids of its blocks of 512 tokens. Equal
// ids mean the same tokens after the same prefix.
type Entry struct {
	Timestamp    int64   `json:"timestamp"`     // ms from the start
	InputLength  int     `json:"input_length"`  // tokens
	OutputLength int     `json:"output_length"` // tokens
	HashIDs      []int64 `json:"hash_ids"`
}

// At returns the time at which the request is due at a speed; 1 is as recorded.
func (e *Entry) At(speed float64) time.Duration {
	return time.Duration(float64(e.Timestamp) * float64(time.Millisecond) / speed)
}

// ErrTrace is wrapped by the errors of ReadTrace about the content.
var ErrTrace = errors.New("bad trace")

// ReadTrace reads up to limit JSON lines; 0 means all. It checks that the number
// of an entry's blocks fits its length, and that timestamps do not decrease.
func ReadTrace(r io.Reader, limit int) ([]Entry, error) {
	var entries []Entry
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), 4<<20)
	for n := 1; sc.Scan(); n++ {
		if len(sc.Bytes()) == 0 {
			continue
		}
		var e Entry
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrTrace, n, err)
		}
		if e.InputLength < 1 || e.OutputLength < 1 {
			return nil, fmt.Errorf("%w: line %d: input_length and output_length must be at least 1", ErrTrace, n)
		}
		if blocks := (e.InputLength + BlockTokens - 1) / BlockTokens; blocks != len(e.HashIDs) {
			return nil, fmt.Errorf("%w: line %d: %d tokens are %d blocks, but hash_ids has %d", ErrTrace, n, e.InputLength, blocks, len(e.HashIDs))
		}
		if len(entries) > 0 && e.Timestamp < entries[len(entries)-1].Timestamp {
			return nil, fmt.Errorf("%w: line %d: the timestamp goes back", ErrTrace, n)
		}
		entries = append(entries, e)
		if len(entries) == limit {
			return entries, nil
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrTrace)
	}
	return entries, nil
}

// BlockToken returns the i-th token id of a block, between low and high-1. It is
// a pure function, so equal blocks have equal tokens in every run.
func BlockToken(block int64, i, low, high int) int {
	x := uint64(block)*BlockTokens + uint64(i) + 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return low + int(x%uint64(high-low))
}

// EachToken calls f with the token ids of the prompt in order.
func (e *Entry) EachToken(low, high int, f func(id int)) {
	left := e.InputLength
	for _, block := range e.HashIDs {
		n := min(left, BlockTokens)
		for i := range n {
			f(BlockToken(block, i, low, high))
		}
		left -= n
	}
}

// Schedule is an open-loop load: every request has a fixed time, regardless of
// earlier requests.
type Schedule struct {
	Requests int
	// At returns the time from the start at which request i is due; it must not decrease.
	At func(i int) time.Duration
	// MaxInFlight bounds the number of concurrent requests; 0 means no bound. Due
	// requests above it wait, which counts as lag.
	MaxInFlight int
	// Send sends request i; it is called in a new goroutine.
	Send func(ctx context.Context, i int)
}

// Lag is the delay of the requests of a load behind its schedule.
type Lag struct {
	Max  time.Duration
	Late int // requests sent more than 100 ms late
}

// OpenLoop runs a schedule to its end or to the end of ctx. It waits for all
// requests that it has started, and returns their lag.
func OpenLoop(ctx context.Context, s Schedule) Lag {
	var lag Lag
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, max(s.MaxInFlight, 0))
	timer := time.NewTimer(0)
	defer timer.Stop()
	start := time.Now()
	for i := range s.Requests {
		due := start.Add(s.At(i))
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-ctx.Done():
				return lag
			case <-timer.C:
			}
		}
		if s.MaxInFlight > 0 {
			select {
			case <-ctx.Done():
				return lag
			case slots <- struct{}{}:
			}
		}
		if ctx.Err() != nil {
			return lag
		}
		late := time.Since(due)
		lag.Max = max(lag.Max, late)
		if late > 100*time.Millisecond {
			lag.Late++
		}
		running.Go(func() {
			s.Send(ctx, i)
			if s.MaxInFlight > 0 {
				<-slots
			}
		})
	}
	return lag
}
