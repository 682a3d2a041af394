package forward

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/lifetime"
	"github.com/pdmesh/pdmesh/internal/sched"
)

type healthy struct{}

func (healthy) Troubled() []instance.Key             { return nil }
func (healthy) Available(instance.Key) bool          { return true }
func (healthy) SilentFor(instance.Key) time.Duration { return 0 }
func (healthy) Unreachable(instance.Key) bool        { return false }
func (healthy) Share(instance.Key) float64           { return 1 }

type fixedSource struct{ snap *instance.Snapshot }

func (f fixedSource) Snapshot() *instance.Snapshot { return f.snap }

// begun is a response that can tell whether its head was written.
type begun struct {
	*httptest.ResponseRecorder
	written bool
}

func (b *begun) WriteHeader(status int) {
	b.written = true
	b.ResponseRecorder.WriteHeader(status)
}

func (b *begun) Written() bool { return b.written }

type clientContext struct{ lifetime.Context }

func (*clientContext) Value(any) any { return nil }

// An exchange is used again only if nobody can hold on to any of it.
func TestOnlyWhatIsOursIsUsedAgain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		do   func(x *exchange, s *sched.Scheduler, client *clientContext)
		ours bool
	}{
		{"served", func(*exchange, *sched.Scheduler, *clientContext) {}, true},
		{"its leg was called off", func(x *exchange, s *sched.Scheduler, _ *clientContext) {
			s.Abandon(x.running.Load().pick.Instance.Key, true, "dead")
		}, false},
		{"its deadline went off", func(*exchange, *sched.Scheduler, *clientContext) {
			time.Sleep(time.Minute) // of the bubble's own clock
			synctest.Wait()
		}, false},
		{"the client left", func(_ *exchange, _ *sched.Scheduler, client *clientContext) { client.Cancel(errCause) }, false},
		{"somebody waits for the leg", func(x *exchange, _ *sched.Scheduler, _ *clientContext) { _ = x.running.Load().Done() }, false},
		{"somebody is told of the leg's end", func(x *exchange, _ *sched.Scheduler, _ *clientContext) {
			x.running.Load().AfterFunc(func() {})
		}, false},
		{"its body is lent", func(x *exchange, _ *sched.Scheduler, _ *clientContext) { x.lent = true }, false},
		{"its answer broke", func(x *exchange, _ *sched.Scheduler, _ *clientContext) { x.broken = true }, false},
		{"a leg failed", func(x *exchange, _ *sched.Scheduler, _ *clientContext) { x.entry.Attempts = 1 }, false},
		{"a leg beside others", func(x *exchange, _ *sched.Scheduler, _ *clientContext) {
			x.beginAside(time.Hour, errIdleTimeout).end()
		}, false},
		{"a third leg, after a hand-over that came to nothing", func(x *exchange, _ *sched.Scheduler, _ *clientContext) {
			a, err := x.pick(instance.Decode, nil)
			if err != nil {
				panic(err)
			}
			x.begin(a, wait{limit: time.Minute, cause: errIdleTimeout}).end()
			a.Done()
		}, false},
		{"nothing was written", func(x *exchange, _ *sched.Scheduler, _ *clientContext) { x.w.(*begun).written = false }, false},
		{"nobody knows what was written", func(x *exchange, _ *sched.Scheduler, _ *clientContext) { x.w = httptest.NewRecorder() }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				in := &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: "d:1"}, Verified: true,
					Record: instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"}}
				s := sched.New(sched.Options{Source: fixedSource{instance.NewSnapshot(1, []*instance.Instance{in})}, Health: healthy{},
					Connector: func(*instance.Instance) string { return "plain" }})
				h, err := New(Options{Picker: s})
				if err != nil {
					t.Fatal(err)
				}
				client := &clientContext{}
				r := httptest.NewRequestWithContext(client, http.MethodPost, "/", nil)
				x := h.newExchange(&begun{ResponseRecorder: httptest.NewRecorder()}, r, "/")
				for i := range 2 {
					a, err := x.pick(instance.Decode, nil)
					if err != nil {
						t.Fatal(err)
					}
					l := x.begin(a, wait{limit: time.Minute, cause: errFirstByteTimeout})
					if i == 1 {
						x.w.WriteHeader(http.StatusOK)
						tc.do(x, s, client)
					}
					l.end()
					a.Done()
				}
				x.unwatched = x.watch.Stop()
				x.dropBody()
				if got := x.ours(); got != tc.ours {
					t.Errorf("ours: %v", got)
				}
				synctest.Wait()
			})
		})
	}
}

// What is used again is as good as new.
func TestRecycledExchangeIsEmpty(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		client := &clientContext{}
		r := httptest.NewRequestWithContext(client, http.MethodPost, "/", nil)
		r.Header.Set("Authorization", "Bearer secret")
		x := h.newExchange(&begun{ResponseRecorder: httptest.NewRecorder(), written: true}, r, "/")
		header := x.pairHeader("first")
		if header.Get("Authorization") == "" {
			t.Fatal("no header to be forgotten")
		}
		d := x.draft
		piece := x.answers.take(100, smallAnswers, mostAnswers)
		copy(piece, "answer")
		x.unwatched = x.watch.Stop()
		x.dropBody()
		x.recycle()
		if len(header) != 0 || d.header == nil || x.r != nil || x.entry.RequestID != "" || x.legs != 0 || len(x.answers.left) != smallAnswers {
			t.Errorf("left: %v, %+v, %d of the answers", header, x.entry, len(x.answers.left))
		}
		x = h.newExchange(&begun{ResponseRecorder: httptest.NewRecorder(), written: true}, r, "/")
		// What is taken out again has made the map as large.
		r.Header.Set("Connection", "keep-alive")
		for i := range maxKeptNames {
			r.Header.Set("X-"+strconv.Itoa(i), "v")
			r.Header.Add("Connection", "X-"+strconv.Itoa(i))
		}
		d = x.borrow()
		kept := d.header
		long := x.pairHeader("second")
		long.Set("Mark", "long")
		if kept.Get("Mark") != "" {
			t.Error("a long header is made in the memory that is kept")
		}
		if x.dropBody(); d.first.Get("Mark") != "" || long.Get("Mark") == "" {
			t.Error("the memory of a long header is kept")
		}
	})
}

// Memory that was too small is larger the next time, within bounds, and what was
// given is nobody else's until then.
func TestMemoryGrows(t *testing.T) {
	t.Parallel()
	const size, most = 100, 400
	var m memory
	fill := func(n int, with byte) []byte {
		b := m.take(n, size, most)
		if len(b) != n || cap(b) != n {
			t.Fatalf("asked for %d: %d bytes, room for %d", n, len(b), cap(b))
		}
		for i := range b {
			b[i] = with
		}
		return b
	}
	for _, step := range []struct{ first, second, kept int }{
		{60, 40, size},     // both fit
		{60, 41, 202},      // now they do not, but will
		{150, 52, 202},     // they do
		{60, most, 202},    // more than is kept
		{most + 1, 1, 202}, // the same
		{1, 300, most},     // twice as much would be more than is kept
	} {
		a, b := fill(step.first, 'a'), fill(step.second, 'b')
		if strings.Trim(string(a), "a") != "" || strings.Trim(string(b), "b") != "" {
			t.Errorf("%+v: pieces overlap", step)
		}
		if m.reset(); len(m.all) != step.kept || len(m.left) != step.kept {
			t.Errorf("%+v: %d of %d bytes are left", step, len(m.left), len(m.all))
		}
	}
	first := m.take(100, size, most)
	m.reset()
	if again := m.take(most, size, most); &first[0] != &again[0] {
		t.Error("what was enough is made anew")
	}
}
