package fakevllm

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

// The side channel stands for NIXL's: a decode engine of another process asks
// the prefill engine for a hand-over. One line each way over TCP:
//
//	TAKE <engine id> <request id> <base> <token> <version> <prompt hash>
//	FREE <engine id> <request id>
//	OK | ERR <reason>
//
// where every word but the hash is "=" and the query-escaped value.

const sideDeadline = 2 * time.Second

// sideServer answers one line by another.
type sideServer struct {
	ln     net.Listener
	answer func(line string) string
	wg     sync.WaitGroup

	mu    sync.Mutex // guards conns and shut
	conns map[net.Conn]struct{}
	shut  bool
}

func startSide(ctx context.Context, addr string, answer func(line string) string) (*sideServer, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("side channel on %s: %w", addr, err)
	}
	s := &sideServer{ln: ln, answer: answer, conns: make(map[net.Conn]struct{})}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *sideServer) port() int { return s.ln.Addr().(*net.TCPAddr).Port }

func (s *sideServer) accept() {
	for {
		conn, err := s.ln.Accept()
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

func (s *sideServer) serve(conn net.Conn) {
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
		_ = conn.SetWriteDeadline(time.Now().Add(sideDeadline))
		if _, err := conn.Write([]byte(answer + "\n")); err != nil {
			return
		}
	}
}

var errSideSyntax = errors.New("malformed request on the side channel")

// answer is one question on the side channel of a NIXL engine.
func (l *ledger) answer(line string) string {
	if err := l.handle(line); err != nil {
		return "ERR " + err.Error()
	}
	return "OK"
}

func (l *ledger) handle(line string) error {
	words := strings.Fields(line)
	if len(words) == 3 && words[0] == "FREE" {
		engineID, _ := url.QueryUnescape(strings.TrimPrefix(words[1], "="))
		requestID, _ := url.QueryUnescape(strings.TrimPrefix(words[2], "="))
		l.free(engineID, requestID)
		return nil
	}
	if len(words) != 7 || words[0] != "TAKE" {
		return errSideSyntax
	}
	for i := 1; i < 6; i++ {
		plain, err := url.QueryUnescape(strings.TrimPrefix(words[i], "="))
		if err != nil {
			return errSideSyntax
		}
		words[i] = plain
	}
	prompt, err := strconv.ParseUint(words[6], 16, 64)
	if err != nil {
		return errSideSyntax
	}
	return l.take(claim{
		engineID: words[1], requestID: words[2], base: words[3], token: words[4], version: words[5], prompt: prompt,
	}, time.Now())
}

// close ends the listener and all connections and waits for their goroutines.
func (s *sideServer) close() {
	s.mu.Lock()
	s.shut = true
	_ = s.ln.Close()
	for conn := range s.conns {
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// sideClient keeps connections to other engines' side channels.
type sideClient struct {
	mu   sync.Mutex // guards idle and shut
	idle map[string][]net.Conn
	shut bool
}

// take fetches a hand-over. An idle connection that turns out to be dead is
// replaced once.
func (c *sideClient) take(ctx context.Context, addr string, cl claim) error {
	esc := func(s string) string { return "=" + url.QueryEscape(s) }
	line := "TAKE " + esc(cl.engineID) + " " + esc(cl.requestID) + " " + esc(cl.base) + " " + esc(cl.token) + " " + esc(cl.version) +
		" " + strconv.FormatUint(cl.prompt, 16) + "\n"
	if conn := c.get(addr); conn != nil {
		if answer, err := c.exchange(addr, conn, line); err == nil {
			return sideError(answer)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, sideDeadline)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("fetch the hand-over: %w", err)
	}
	answer, err := c.exchange(addr, conn, line)
	if err != nil {
		return fmt.Errorf("fetch the hand-over: %w", err)
	}
	return sideError(answer)
}

// free tells a prefill engine that a hand-over will not be read.
func (c *sideClient) free(ctx context.Context, addr string, cl claim) {
	conn, err := (&net.Dialer{Timeout: sideDeadline}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return // its lease ends
	}
	_, _ = c.exchange(addr, conn, "FREE ="+url.QueryEscape(cl.engineID)+" ="+url.QueryEscape(cl.requestID)+"\n")
}

func (c *sideClient) exchange(addr string, conn net.Conn, line string) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(sideDeadline))
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

func sideError(answer string) error {
	if answer == "OK" {
		return nil
	}
	reason := strings.TrimPrefix(answer, "ERR ")
	for _, err := range []error{errForeign, errUnknown, errUsed, errFreed, errExpired, errPrompt, errRequest, errTampered, errVersion} {
		if err.Error() == reason {
			return err
		}
	}
	return fmt.Errorf("%w: %q", errSideSyntax, answer)
}

func (c *sideClient) get(addr string) net.Conn {
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

func (c *sideClient) put(addr string, conn net.Conn) {
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

func (c *sideClient) close() {
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
