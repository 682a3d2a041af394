package accesslog_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/accesslog"
	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func quiet() logrus.FieldLogger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

func entry() *forward.Entry {
	return &forward.Entry{
		RequestID: "r-1", Client: "127.0.0.1:5", Method: "POST", Path: "/v1/completions", Model: "org/m", Stream: true,
		Status: 200, Outcome: forward.OutcomeOK, Prefill: "127.0.0.1:8100", Decode: "[::1]:8200", Attempts: 1, Revision: 7,
		BytesIn: 10, BytesOut: 20, Start: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Duration: 1234567 * time.Microsecond, TTFT: 2003 * time.Microsecond,
	}
}

// written gives what a Log makes of entries.
func written(t *testing.T, asJSON bool, entries ...*forward.Entry) string {
	t.Helper()
	var out bytes.Buffer
	l := accesslog.New(accesslog.Options{Out: &out, JSON: asJSON, Log: quiet()})
	for _, e := range entries {
		l.Write(e)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // what is left is written at the end
	l.Run(ctx)
	return out.String()
}

func TestText(t *testing.T) {
	t.Parallel()
	want := `time="2026-01-02T03:04:06.234Z" level=info msg=request request_id=r-1 client=127.0.0.1:5 method=POST` +
		` path=/v1/completions model=org/m stream=true status=200 outcome=ok prefill=127.0.0.1:8100 decode=[::1]:8200` +
		` failed_legs=1 revision=7 bytes_in=10 bytes_out=20 ms=1234.567 ttft_ms=2.003` + "\n"
	if got := written(t, false, entry()); got != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var got map[string]any
	if err := json.Unmarshal([]byte(written(t, true, entry())), &got); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]any{
		"time": "2026-01-02T03:04:06.234567Z", "level": "info", "msg": "request", "request_id": "r-1", "stream": true,
		"status": 200.0, "ms": 1234.567, "ttft_ms": 2.003, "model": "org/m", "failed_legs": 1.0,
	} {
		if got[k] != want {
			t.Errorf("%s = %v, want %v", k, got[k], want)
		}
	}
	for _, absent := range []string{"alone", "failure"} {
		if _, ok := got[absent]; ok {
			t.Errorf("%s is there though it is empty", absent)
		}
	}
}

// What clients and engines write must neither end a line nor forge a field.
func TestHostileValues(t *testing.T) {
	t.Parallel()
	for _, v := range []string{
		"/a b", "/a\nlevel=error msg=forged", `/a"quoted"`, `/back\slash`, "/esc\x1b[2J", "/\xff\xfe", "/ü", "", "/a=b", "/\u2028", "/del\x7f",
	} {
		e := entry()
		e.Path = v
		text := written(t, false, e)
		if strings.Count(text, "\n") != 1 || strings.ContainsRune(text, 0x1b) {
			t.Errorf("%q: text line %q", v, text)
		}
		if strings.Contains(text, " msg=forged") && !strings.Contains(text, `"/a\nlevel=error msg=forged"`) {
			t.Errorf("%q: forged a field in %q", v, text)
		}
		line := written(t, true, e)
		var got struct{ Path string }
		if err := json.Unmarshal([]byte(line), &got); err != nil || strings.Count(line, "\n") != 1 {
			t.Fatalf("%q: %v in %q", v, err, line)
		}
		if want := strings.ToValidUTF8(strings.ReplaceAll(v, "\xff\xfe", "\uFFFD\uFFFD"), ""); got.Path != want {
			t.Errorf("%q became %q", v, got.Path)
		}
	}
}

// Lines must come out while the program runs, not only at its end.
func TestRunWritesMeanwhile(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	l := accesslog.New(accesslog.Options{Out: w, Log: quiet()})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { l.Run(ctx) })
	lines := bufio.NewReader(r)
	for range 3 {
		l.Write(entry())
		if s, err := lines.ReadString('\n'); err != nil || !strings.Contains(s, "request_id=r-1") {
			t.Fatalf("%q, %v", s, err)
		}
	}
	cancel()
	work.Wait()
}

type stuck struct {
	entered chan struct{}
	release chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.release
	return len(p), nil
}

// An output that takes nothing must not hold up requests, nor fill the memory.
func TestStuckOutput(t *testing.T) {
	t.Parallel()
	out := &stuck{entered: make(chan struct{}, 1), release: make(chan struct{})}
	var told bytes.Buffer
	log := logrus.New()
	log.SetOutput(&told)
	l := accesslog.New(accesslog.Options{Out: out, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { l.Run(ctx) })
	l.Write(entry())
	<-out.entered
	e := entry()
	e.Path = "/" + strings.Repeat("x", 1000)
	for range 10_000 { // 12 MB: these come back though nobody reads
		l.Write(e)
	}
	close(out.release)
	cancel()
	work.Wait()
	if !strings.Contains(told.String(), "access lines were lost") {
		t.Errorf("nobody was told of the lost lines: %q", told.String())
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestFailingOutputIsTold(t *testing.T) {
	t.Parallel()
	var told bytes.Buffer
	log := logrus.New()
	log.SetOutput(&told)
	l := accesslog.New(accesslog.Options{Out: failing{}, Log: log})
	l.Write(entry())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l.Run(ctx)
	if !strings.Contains(told.String(), "disk full") {
		t.Errorf("told %q", told.String())
	}
}

func BenchmarkWrite(b *testing.B) {
	l := accesslog.New(accesslog.Options{Out: io.Discard, Log: quiet()})
	ctx, cancel := context.WithCancel(b.Context())
	var work sync.WaitGroup
	work.Go(func() { l.Run(ctx) })
	e := entry()
	b.ReportAllocs()
	for b.Loop() {
		l.Write(e)
	}
	cancel()
	work.Wait()
}
