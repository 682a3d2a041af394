package relay

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func TestIsMedia(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		got  string
		want bool
	}{
		{"text/event-stream", true}, {"Text/Event-Stream ; charset=utf-8", true}, {" text/event-stream;", true},
		{"text/event-stream; charset=", false}, {"application/json", false}, {"", false}, {"text/event-\u017ftream", false},
		{"text/event-stream, text/plain", false},
	} {
		if isEventStream(tc.got) != tc.want {
			t.Errorf("%q: %v", tc.got, !tc.want)
		}
	}
}

// route is the route of a test request.
type route struct{}

func (route) Header(h http.Header) { h.Set("X-PD-Policy", "p") }

// A client gets one id, and no field of an engine's header that concerns the connection or that the proxy
// sets. It gets the route of its request only if it may see it.
func TestAnswerHeader(t *testing.T) {
	t.Parallel()
	header := http.Header{
		"Server": {"uvicorn"}, "X-Two": {"a", "b"}, "Content-Type": {"application/json"},
		"Connection": {"keep-alive, X-Hop"}, "X-Hop": {"1"}, "Keep-Alive": {"5"}, "Date": {"then"}, "X-Request-Id": {"engine's"}, "X-Pd-Decode": {"a secret"},
	}
	want := []string{"Content-Length: 7", "Content-Type: application/json", "Server: uvicorn", "X-Request-Id: mine", "X-Two: a", "X-Two: b"}
	for _, traced := range []bool{false, true} {
		w := httptest.NewRecorder()
		a := Answer{Client: Std(w), ID: "mine", Times: &stage.Times{Start: time.Now()}}
		all := want
		if traced {
			a.Route = route{}
			all = append(slices.Clone(want), "X-Pd-Policy: p")
		}
		a.sendHeader(&upstream.Response{Status: http.StatusOK, Header: header}, 7)
		var got []string
		for name, values := range w.Result().Header {
			for _, v := range values {
				got = append(got, name+": "+v)
			}
		}
		slices.Sort(got)
		slices.Sort(all)
		assert.Equal(t, all, got, "traced %v: %s", traced, strings.Join(got, "; "))
	}
}

// slowClient is the connection of a client that reads 1 kB/s.
type slowClient struct {
	http.ResponseWriter
	deadline time.Time
	behind   int // unread bytes of earlier writes
}

func (c *slowClient) Flush()                             {}
func (c *slowClient) SetReadDeadline(time.Time) error    { return nil }
func (c *slowClient) SetWriteDeadline(t time.Time) error { c.deadline = t; return nil }

func (c *slowClient) Write(b []byte) (int, error) {
	for n := -c.behind; n < len(b); n += 1000 {
		if time.Sleep(time.Second); time.Now().After(c.deadline) {
			return max(n, 0), os.ErrDeadlineExceeded
		}
	}
	return len(b), nil
}

// A client that reads steadily gets all of a large answer, however long it takes.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &slowClient{ResponseWriter: httptest.NewRecorder()}
		a := Answer{Client: c, Idle: 2 * time.Minute}
		body := make([]byte, 1<<20)
		if _, ok := a.writeLocked(body); !ok || a.Bytes != int64(len(body)) {
			t.Errorf("cut after %d bytes", a.Bytes)
		}
		for _, c.behind = range []int{0, 0, 50_000, 200_000} { // more with a receive buffer above the default
			if _, ok := a.writeLocked([]byte("x")); !ok {
				t.Errorf("an event is cut after %d bytes", c.behind)
			}
		}
	})
}

// goneClient is the connection of a client that has left.
type goneClient struct{ http.ResponseWriter }

func (goneClient) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A stream that loses its leg after its client has left has the outcome client_gone.
func TestLostLeg_ClientGone(t *testing.T) {
	t.Parallel()
	log, _ := logtest.NewNullLogger()
	a := Answer{Client: Std(goneClient{httptest.NewRecorder()}), Kind: openai.Chat, Log: log}
	a.Status = http.StatusOK
	a.breakOff(true, leg.BrokeOff, io.ErrUnexpectedEOF)
	assert.True(t, a.Outcome == OutcomeClientGone && a.Status == StatusClientGone && a.Failure == "" && a.Broken,
		"outcome %q, status %d, failure %q, broken %t", a.Outcome, a.Status, a.Failure, a.Broken)
}
