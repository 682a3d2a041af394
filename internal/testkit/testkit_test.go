package testkit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdmesh/pdmesh/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.MaybeRunEtcd()
	goleak.VerifyTestMain(m)
}

func TestEtcdProcess(t *testing.T) {
	t.Parallel()
	p := testkit.StartEtcdProcess(t)
	cli := p.Client(t)
	get := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		resp, err := cli.Get(ctx, "/k")
		if err != nil || len(resp.Kvs) == 0 {
			return "", err
		}
		return string(resp.Kvs[0].Value), nil
	}
	want := func(value string) {
		t.Helper()
		testkit.Eventually(t, 30*time.Second, func() error {
			if got, err := get(); err != nil || got != value {
				return fmt.Errorf("%q, %v", got, err)
			}
			return nil
		})
	}
	if _, err := cli.Put(t.Context(), "/k", "v"); err != nil {
		t.Fatal(err)
	}
	p.Pause()
	if _, err := get(); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a paused etcd answered: %v", err)
	}
	p.Resume()
	want("v")
	address := p.Endpoint()
	p.Kill()
	if _, err := get(); err == nil {
		t.Fatal("a dead etcd answered")
	}
	p.Restart()
	want("v")
	p.Wipe()
	p.Restart()
	want("")
	if p.Endpoint() != address {
		t.Fatalf("the endpoint moved from %s to %s", address, p.Endpoint())
	}
}

func TestLink(t *testing.T) {
	t.Parallel()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // an echo server, one connection at a time
		defer close(done)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReader(c)
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					break
				}
				_, _ = c.Write([]byte(line))
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = lis.Close(); <-done })
	link := testkit.StartLink(t, lis.Addr().String())
	say := func(c net.Conn, within time.Duration) error {
		_ = c.SetDeadline(time.Now().Add(within))
		if _, err := c.Write([]byte("hello\n")); err != nil {
			return err
		}
		got, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && got != "hello\n" {
			err = fmt.Errorf("heard %q", got)
		}
		return err
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", link.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := dial()
	if err := say(c, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	link.Freeze()
	var timeout net.Error
	if err := say(c, 100*time.Millisecond); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("a frozen link: %v", err)
	}
	link.Restore()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if got, err := bufio.NewReader(c).ReadString('\n'); err != nil || got != "hello\n" {
		t.Fatalf("what was held back: %q, %v", got, err)
	}
	link.Cut()
	if err := say(c, 10*time.Second); err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("a cut link: %v", err)
	}
	c = dial()
	if err := say(c, 10*time.Second); err == nil {
		t.Fatal("a cut link let a new connection through")
	}
	link.Restore()
	if err := say(dial(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
}
