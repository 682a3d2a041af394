package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The side channel simulates NIXL's: a decode engine of another process asks
// the prefill engine for a hand-over. One line each way over TCP:
//
//	TAKE <engine id> <request id> <base> <token> <version> <prompt hash>
//	FREE <engine id> <request id>
//	OK | ERR <reason>
//
// where every word but the hash is "=" and the query-escaped value.

const SideDeadline = 2 * time.Second

// SideServer answers one line by another.
type SideServer struct {
	Ln     net.Listener
	answer func(line string) string
	wg     sync.WaitGroup

	mu    sync.Mutex // guards conns and shut
	conns map[net.Conn]struct{}
	shut  bool
}

func StartSide(ctx context.Context, addr string, answer func(line string) string) (*SideServer, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("side channel on %s: %w", addr, err)
	}
	s := &SideServer{Ln: ln, answer: answer, conns: make(map[net.Conn]struct{})}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *SideServer) Port() int { return s.Ln.Addr().(*net.TCPAddr).Port }

func (s *SideServer) accept() {
	for {
		conn, err := s.Ln.Accept()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		if s.shut {
			s.mu.Unlock()
			_ = conn.Close()
			return
		}
		s.conns[conn] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() { s.serve(conn) })
	}
}

func (s *SideServer) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return // the peer is done
		}
		answer := s.answer(line)
		_ = conn.SetWriteDeadline(time.Now().Add(SideDeadline))
		if _, err := conn.Write([]byte(answer + "\n")); err != nil {
			return
		}
	}
}

var ErrSideSyntax = errors.New("malformed request on the side channel")

// Answer is one question on the side channel of a NIXL engine.
func (l *Ledger) Answer(line string) string {
	if err := l.handle(line); err != nil {
		return "ERR " + err.Error()
	}
	return "OK"
}

func (l *Ledger) handle(line string) error {
	words := strings.Fields(line)
	if len(words) == 3 && words[0] == "FREE" {
		engineID, _ := url.QueryUnescape(strings.TrimPrefix(words[1], "="))
		requestID, _ := url.QueryUnescape(strings.TrimPrefix(words[2], "="))
		l.Free(engineID, requestID)
		return nil
	}
	if len(words) != 7 || words[0] != "TAKE" {
		return ErrSideSyntax
	}
	for i := 1; i < 6; i++ {
		plain, err := url.QueryUnescape(strings.TrimPrefix(words[i], "="))
		if err != nil {
			return ErrSideSyntax
		}
		words[i] = plain
	}
	prompt, err := strconv.ParseUint(words[6], 16, 64)
	if err != nil {
		return ErrSideSyntax
	}
	return l.Take(Claim{
		EngineID: words[1], RequestID: words[2], Base: words[3], Token: words[4], Version: words[5], Prompt: prompt,
	}, time.Now())
}

// Close ends the listener and all connections and waits for their goroutines.
func (s *SideServer) Close() {
	s.mu.Lock()
	s.shut = true
	_ = s.Ln.Close()
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// SideClient keeps connections to other engines' side channels.
type SideClient struct {
	mu   sync.Mutex // guards idle and shut
	idle map[string][]net.Conn
	shut bool
}

// Take fetches a hand-over. An idle connection that turns out to be dead is
// replaced once.
func (c *SideClient) Take(ctx context.Context, addr string, cl Claim) error {
	esc := func(s string) string { return "=" + url.QueryEscape(s) }
	line := "TAKE " + esc(cl.EngineID) + " " + esc(cl.RequestID) + " " + esc(cl.Base) + " " + esc(cl.Token) + " " + esc(cl.Version) +
		" " + strconv.FormatUint(cl.Prompt, 16) + "\n"
	if conn := c.get(addr); conn != nil {
		if answer, err := c.exchange(addr, conn, line); err == nil {
			return SideError(answer)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, SideDeadline)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("fetch the hand-over: %w", err)
	}
	answer, err := c.exchange(addr, conn, line)
	if err != nil {
		return fmt.Errorf("fetch the hand-over: %w", err)
	}
	return SideError(answer)
}

// Free tells a prefill engine that a hand-over will not be read.
func (c *SideClient) Free(ctx context.Context, addr string, cl Claim) {
	conn, err := (&net.Dialer{Timeout: SideDeadline}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return // its lease ends
	}
	_, _ = c.exchange(addr, conn, "FREE ="+url.QueryEscape(cl.EngineID)+" ="+url.QueryEscape(cl.RequestID)+"\n")
}

func (c *SideClient) exchange(addr string, conn net.Conn, line string) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(SideDeadline))
	if _, err := conn.Write([]byte(line)); err != nil {
		_ = conn.Close()
		return "", err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		_ = conn.Close()
		return "", err
	}
	c.put(addr, conn)
	return strings.TrimSpace(answer), nil
}

func SideError(answer string) error {
	if answer == "OK" {
		return nil
	}
	reason := strings.TrimPrefix(answer, "ERR ")
	for _, err := range []error{errForeign, errUnknown, errUsed, errFreed, ErrExpired, ErrPrompt, errRequest, ErrTampered, errVersion} {
		if err.Error() == reason {
			return err
		}
	}
	return fmt.Errorf("%w: %q", ErrSideSyntax, answer)
}

func (c *SideClient) get(addr string) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.idle[addr]
	if len(list) == 0 {
		return nil
	}
	conn := list[len(list)-1]
	c.idle[addr] = list[:len(list)-1]
	return conn
}

func (c *SideClient) put(addr string, conn net.Conn) {
	const perPeer = 64
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut || len(c.idle[addr]) >= perPeer {
		_ = conn.Close()
		return
	}
	if c.idle == nil {
		c.idle = make(map[string][]net.Conn)
	}
	c.idle[addr] = append(c.idle[addr], conn)
}

func (c *SideClient) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut = true
	for _, list := range c.idle {
		for _, conn := range list {
			_ = conn.Close()
		}
	}
	c.idle = nil
}
