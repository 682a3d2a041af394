package transfer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/sim/tcpserver"
)

// sideTimeout bounds a question that is answered at once, and the writing of an answer.
const sideTimeout = 30 * time.Second

// Question is a request on a side channel: one JSON value over TCP, answered by another one. It
// replaces the ZeroMQ messages and the transfers by NIXL, Mooncake or RDMA of real engines.
type Question struct {
	Op string // "take", "free", "pull", "alloc", "fill"
	Claim
	Peer      string // MoRI-IO: address of the decode
	TP        int    // MoRI-IO: TP size of the decode
	AssumedTP int    // MoRI-IO: TP size that the decode assumes of the prefill, 0 for none
}

// answer is the response to a Question.
type answer struct {
	Prompt uint64 // hash of the prompt that was computed
	Error  string
}

var (
	errQuestion = errors.New("malformed request on the side channel")
	errSide     = errors.New("the side channel failed")
)

// Side is the server of a side channel.
type Side struct{ server *tcpserver.Server }

// StartSide starts a side channel, which calls answer from several goroutines.
func StartSide(ctx context.Context, addr string, answer func(Question) (prompt uint64, err error)) (*Side, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("side channel on %s: %w", addr, err)
	}
	return &Side{tcpserver.Serve(ln, func(_ int, conn net.Conn) { reply(conn, answer) })}, nil
}

// Addr returns host:port.
func (s *Side) Addr() string { return s.server.Addr().String() }

// Port returns the port, or 0 for nil.
func (s *Side) Port() int {
	if s == nil {
		return 0
	}
	return s.server.Addr().(*net.TCPAddr).Port
}

// Close ends the side channel. It does nothing to nil.
func (s *Side) Close() {
	if s != nil {
		s.server.Close()
	}
}

// reply reads a question from a connection and answers it.
func reply(conn net.Conn, question func(Question) (prompt uint64, err error)) {
	var q Question
	if json.NewDecoder(conn).Decode(&q) != nil {
		return
	}
	prompt, err := question(q)
	a := answer{Prompt: prompt}
	if err != nil {
		a.Error = err.Error()
	}
	_ = conn.SetWriteDeadline(time.Now().Add(sideTimeout))
	_ = json.NewEncoder(conn).Encode(a) // the peer may have disconnected
}

// ask sends a question. Connection errors wrap errSide.
func ask(ctx context.Context, addr string, q Question) (prompt uint64, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errSide, err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var a answer
	if err = json.NewEncoder(conn).Encode(q); err == nil {
		err = json.NewDecoder(conn).Decode(&a)
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: %w", errSide, cmp.Or(ctx.Err(), err))
	case a.Error == ErrExpired.Error():
		return 0, ErrExpired
	case a.Error != "":
		return 0, errors.New(a.Error)
	}
	return a.Prompt, nil
}

// Ask sends a question that is answered at once.
func Ask(ctx context.Context, addr string, q Question) error {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	_, err := ask(ctx, addr, q)
	return err
}

// Fetched is the result of a load.
type Fetched struct {
	Prompt uint64 // hash of the prompt that was computed
	Err    error
}

// Fetch waits for the blocks of a prefill. A connection that fails is not a failure until ctx
// ends: ZeroMQ reconnects until then.
func Fetch(ctx context.Context, addr string, q Question) Fetched {
	q.Op = "pull"
	prompt, err := ask(ctx, addr, q)
	if errors.Is(err, errSide) {
		<-ctx.Done()
	}
	return Fetched{Prompt: prompt, Err: err}
}

// Receiver is the buffer of an LMCache decode. Each rank of a prefill asks the same rank of the
// decode for memory, which lists the chunks at once ("alloc"). It then writes them ("fill") and
// notifies the proxy. A decode that reads between alloc and fill gets the former contents of the
// memory, so its answer is wrong.
type Receiver struct {
	ranks []*Side

	mu     sync.Mutex // guards chunks
	chunks map[string]*chunk
}

// chunk has the state of one prompt's chunks, by rank.
type chunk struct{ listed, filled []bool }

// Start starts the side channels, with an address for each rank.
func (r *Receiver) Start(ctx context.Context, addrs []string) error {
	r.chunks = make(map[string]*chunk)
	for rank, addr := range addrs {
		s, err := StartSide(ctx, addr, func(q Question) (uint64, error) { return 0, r.receive(rank, len(addrs), q) })
		if err != nil {
			return err
		}
		r.ranks = append(r.ranks, s)
	}
	return nil
}

// Close ends the receiver.
func (r *Receiver) Close() {
	for _, s := range r.ranks {
		s.Close()
	}
}

// Sides returns the side channels of the ranks.
func (r *Receiver) Sides() []*Side { return r.ranks }

// receive handles a question to a rank. Its RequestID is the prompt's hash and the tags of
// kv_transfer_params.
func (r *Receiver) receive(rank, ranks int, q Question) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.chunks[q.RequestID]
	switch {
	case q.Op == "alloc":
		if c == nil {
			c = &chunk{make([]bool, ranks), make([]bool, ranks)}
			r.chunks[q.RequestID] = c
		}
		c.listed[rank] = true
	case q.Op != "fill":
		return errQuestion
	case c != nil:
		c.filled[rank] = true
	}
	return nil
}

// Take reads and removes the chunks of a prompt. filled is false if they were not written yet.
func (r *Receiver) Take(key string) (found, filled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.chunks[key]
	if c == nil || slices.Contains(c.listed, false) {
		return false, false // lookups find only chunks that every rank has listed
	}
	delete(r.chunks, key)
	return true, !slices.Contains(c.filled, false)
}

// Unread returns the number of prompts in the buffer.
func (r *Receiver) Unread() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.chunks)
}
