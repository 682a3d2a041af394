package awake_test

import (
	"crypto/sha256"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/bench/awake"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

// echoMark makes this program the other process of TestAwake.
const echoMark = "PD_TEST_ECHO"

func TestMain(m *testing.M) {
	if addr := os.Getenv(echoMark); addr != "" {
		if err := echo(addr); err != nil {
			panic(err)
		}
		return
	}
	leak.Main(m)
}

// echo answers every message, after a millisecond's work or so.
func echo(addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	work := make([]byte, 1<<20)
	for {
		if _, err := io.ReadFull(conn, work[:3]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		sum := sha256.Sum256(work)
		copy(work[len(work)-len(sum):], sum[:])
		if _, err := conn.Write(work[:3]); err != nil {
			return err
		}
	}
}

// TestAwake talks to another process. While that has its turn nothing can run here
// but the guard, which must look; and what comes must reach its goroutine, as must
// the timers.
func TestAwake(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	if _, err := awake.Keep(); err == nil {
		t.Fatal("one core was kept awake where Go runs on several")
	}
	runtime.GOMAXPROCS(1)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command(self)
	other.Env = append(os.Environ(), echoMark+"="+ln.Addr().String())
	var said strings.Builder
	other.Stdout, other.Stderr = &said, &said
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	never := time.Now().Add(time.Minute)
	if err := ln.(*net.TCPListener).SetDeadline(never); err != nil {
		t.Fatal(err)
	}
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	guard, err := awake.Keep()
	if err != nil {
		t.Fatal(err)
	}
	// How often we have a core while the other process has its turn is up to the
	// machine, so it is waited for until that was seen often enough.
	looked := 0
	var buf [3]byte
	for waits := 0; looked < 50; waits++ {
		if time.Now().After(never) {
			t.Fatalf("the guard looked during %d of %d waits", looked, waits)
		}
		before := guard.Looks()
		if _, err := conn.Write([]byte("abc")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, buf[:]); err != nil || string(buf[:]) != "abc" {
			t.Fatalf("%q came back, %v", buf, err)
		}
		if guard.Looks() != before {
			looked++
		}
	}
	for before := guard.Looks(); guard.Looks() == before; { // the same
		if time.Now().After(never) {
			t.Fatal("the guard did not look while a timer was waited for")
		}
		<-time.After(time.Millisecond)
	}
	conn.Close()
	if err := other.Wait(); err != nil {
		t.Errorf("the other process: %v, %s", err, said.String())
	}
	if err := guard.Stop(); err != nil {
		t.Error(err)
	}
}
