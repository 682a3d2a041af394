package handover

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Receiver is the buffer of an LMCache decode.
//
// Each rank asks the same rank of decode for room at its alloc port, which lists the
// chunks at once, then writes, and then notifies the proxy. Two lines to the alloc port
// in place of the message by ZeroMQ and the write by NIXL:
//
//	ALLOC =<key, query-escaped>     FILL =<key, query-escaped>
//	OK | ERR <reason>
//
// The key is the prompt's hash and the tags of kv_transfer_params. A decode that comes
// between the two reads what lay in the memory before, and answers wrong.
type Receiver struct {
	ranks []*SideServer

	mu     sync.Mutex // guards chunks
	chunks map[string]*chunk
}

// chunk is one prompt, by rank.
type chunk struct{ listed, filled []bool }

// StartReceiver brings one up, with an address for each rank.
func StartReceiver(ctx context.Context, addrs []string) (*Receiver, error) {
	r := &Receiver{chunks: make(map[string]*chunk)}
	for rank, addr := range addrs {
		s, err := StartSide(ctx, addr, func(line string) string { return r.answer(rank, len(addrs), line) })
		if err != nil {
			r.Close()
			return nil, err
		}
		r.ranks = append(r.ranks, s)
	}
	return r, nil
}

// Close ends it.
func (r *Receiver) Close() {
	for _, s := range r.ranks {
		s.Close()
	}
}

// Addresses are host:port of the ranks.
func (r *Receiver) Addresses() []string {
	var out []string
	for _, s := range r.ranks {
		out = append(out, s.Ln.Addr().String())
	}
	return out
}

func (r *Receiver) answer(rank, ranks int, line string) string {
	words := strings.Fields(line)
	if len(words) != 2 {
		return "ERR " + ErrSideSyntax.Error()
	}
	key, err := url.QueryUnescape(strings.TrimPrefix(words[1], "="))
	if err != nil {
		return "ERR " + ErrSideSyntax.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.chunks[key]
	switch {
	case words[0] == "ALLOC":
		if c == nil {
			c = &chunk{make([]bool, ranks), make([]bool, ranks)}
			r.chunks[key] = c
		}
		c.listed[rank] = true
	case words[0] == "FILL" && c != nil:
		c.filled[rank] = true
	case words[0] != "FILL":
		return "ERR " + ErrSideSyntax.Error()
	}
	return "OK"
}

// Take reads a prompt and forgets it. filled is false for what is read too early.
func (r *Receiver) Take(key string) (found, filled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.chunks[key]
	if c == nil || slices.Contains(c.listed, false) {
		return false, false // the lookup takes what every rank has
	}
	delete(r.chunks, key)
	return true, !slices.Contains(c.filled, false)
}

// Ports are those of the ranks.
func (r *Receiver) Ports() []int {
	var out []int
	for _, s := range r.ranks {
		out = append(out, s.Port())
	}
	return out
}

// Unread is how many prompts lie in it.
func (r *Receiver) Unread() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.chunks)
}

// Tell sends one line and takes the answer.
func Tell(ctx context.Context, addr, line string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprintln(conn, line); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	return SideError(strings.TrimSpace(answer))
}
