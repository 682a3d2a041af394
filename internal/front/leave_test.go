package front_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// waiter is a handler that waits until its client leaves.
func waiter(began, ended chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		began <- nil
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	}
}

// In whatever way a client leaves, its request's context ends, and no other one does.
func TestClientsLeave(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		leave func(w *wire)
	}{
		{"close", func(w *wire) { _ = w.Close() }},
		{"reset", func(w *wire) { _ = w.SetLinger(0); _ = w.Close() }},
		{"half", func(w *wire) { _ = w.CloseWrite() }},
		{"with bytes behind", func(w *wire) { w.send(post("/x", "next")); _ = w.Close() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			const clients = 50
			began, ended := make(chan error, clients+1), make(chan error, clients+1)
			s := start(t, map[string]http.HandlerFunc{"/x": waiter(began, ended)})
			stays := s.dial()
			stays.send(post("/x", "body"))
			var all []*wire
			for i := range clients {
				w := s.dial()
				w.send(post("/x", strings.Repeat("x", i*100)))
				all = append(all, w)
			}
			for range clients + 1 {
				<-began
			}
			for _, w := range all {
				tc.leave(w)
			}
			for range clients {
				if err := <-ended; !errors.Is(err, context.Canceled) {
					t.Errorf("ended with %v", err)
				}
			}
			select {
			case <-ended:
				t.Error("the one who stayed was taken for gone")
			default:
			}
			if tc.name != "close" {
				return
			}
			_ = stays.Close()
			<-ended
		})
	}
}

// A request whose client has left gets no empty 200 if its handler did not answer: a
// client that still reads would take it for an answer.
func TestNoAnswerIsMadeUp(t *testing.T) {
	t.Parallel()
	began, ended := make(chan error, 1), make(chan error, 1)
	s := start(t, map[string]http.HandlerFunc{"/x": waiter(began, ended)})
	w := s.dial()
	w.send(post("/x", "1"))
	<-began
	_ = w.CloseWrite()
	<-ended
	if !w.closed() {
		t.Error("there was an answer")
	}
}

// A client that leaves in the middle of its body ends the request, too.
func TestLeavesInTheBody(t *testing.T) {
	t.Parallel()
	began, ended := make(chan error, 1), make(chan error, 1)
	s := start(t, map[string]http.HandlerFunc{"/x": func(_ http.ResponseWriter, r *http.Request) {
		began <- nil
		_, err := io.ReadAll(r.Body)
		<-r.Context().Done()
		ended <- err
	}})
	w := s.dial()
	w.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc")
	<-began // a client that leaves before this has sent no complete head
	_ = w.CloseWrite()
	if err := <-ended; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("ended with %v", err)
	}
}

// Functions after a request's context run once, when the client leaves and not at the
// request's end: the context is the connection's.
func TestContextOfAConnection(t *testing.T) {
	t.Parallel()
	left := make(chan int, 10)
	n := 0
	s := start(t, map[string]http.HandlerFunc{"/x": func(_ http.ResponseWriter, r *http.Request) {
		n++
		id := n
		stop := context.AfterFunc(r.Context(), func() { left <- id })
		if id == 2 && !stop() {
			t.Error("it had been called before")
		}
		ctx, cancel := context.WithTimeout(r.Context(), long)
		defer cancel()
		if ctx.Err() != nil || r.Context().Value(http.ServerContextKey) != nil {
			t.Errorf("context: %v", ctx.Err())
		}
	}})
	w := s.dial()
	for range 3 {
		w.send(post("/x", ""))
		w.answer()
	}
	select {
	case id := <-left:
		t.Fatalf("%d was called while the client was there", id)
	default:
	}
	_ = w.Close()
	if a, b := <-left, <-left; a+b != 4 {
		t.Fatalf("called: %d and %d", a, b)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	began, finish := make(chan struct{}), make(chan struct{})
	s := start(t, map[string]http.HandlerFunc{
		"/a": echo,
		"/x": func(w http.ResponseWriter, _ *http.Request) {
			began <- struct{}{}
			<-finish
			_, _ = io.WriteString(w, "done")
		},
	})
	release := sync.OnceFunc(func() { close(finish) })
	t.Cleanup(release) // a failure below must not leave the request waiting
	// The new connection is dialled first. When the others are answered, it has been
	// accepted; before that the stop would reset it.
	fresh, idle, busy, rest := s.dial(), s.dial(), s.dial(), s.dial()
	idle.send(post("/a", "1"))
	idle.answer()
	rest.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
	rest.answer()
	busy.send(post("/x", "1"))
	<-began
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(t.Context()) }()
	if !idle.closed() || !rest.closed() {
		t.Error("idle connections are still there")
	}
	// A new connection may still send its first request.
	fresh.send(post("/a", "first"))
	if resp, body, err := fresh.answer(); err != nil || !strings.HasSuffix(body, "first") || !resp.Close {
		t.Errorf("%v %v %q", err, resp, body)
	}
	select {
	case err := <-down:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	release()
	if resp, body, err := busy.answer(); err != nil || body != "done" || !resp.Close {
		t.Errorf("%v %v %q", err, resp, body)
	}
	if err := <-down; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := s.wait(); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve: %v", err)
	}
}

func TestShutdownGivesUp(t *testing.T) {
	t.Parallel()
	began, ended := make(chan error, 1), make(chan error, 1)
	s := start(t, map[string]http.HandlerFunc{"/x": waiter(began, ended)})
	w := s.dial()
	w.send(post("/x", "1"))
	<-began
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	_ = s.Close()
	<-ended
	if !w.closed() {
		t.Error("the connection is still there")
	}
}

// Many clients at once, some of which leave, on few connections and many.
func TestManyClients(t *testing.T) {
	t.Parallel()
	s := start(t, map[string]http.HandlerFunc{"/a": echo})
	var all sync.WaitGroup
	for c := range 40 {
		all.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: c%4 == 0}}
			defer client.CloseIdleConnections()
			for i := range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				if i%10 == 9 {
					time.AfterFunc(time.Duration(c*10)*time.Microsecond, cancel)
				}
				text := strings.Repeat("x", c*i*10)
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+"/a", strings.NewReader(text))
				if err != nil {
					t.Error(err)
				}
				resp, err := client.Do(req)
				if err == nil {
					var b []byte
					b, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					if err == nil && !strings.HasSuffix(string(b), "\n"+text) {
						t.Errorf("got %.80q", b)
					}
				}
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
}
