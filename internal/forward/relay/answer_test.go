package relay

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/upstream"
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
		if isMedia(tc.got, "text/event-stream") != tc.want {
			t.Errorf("%q: %v", tc.got, !tc.want)
		}
	}
}

// way is where a request of a test went.
type way struct{}

func (way) Header(h http.Header) { h.Set("X-PD-Policy", "p") }

// A client gets of an engine's header nothing about the connection, none of the names
// that are the proxy's, and one id; where its request went only if it may know.
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
			a.Route = way{}
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
		if !slices.Equal(got, all) {
			t.Errorf("traced %v: %s", traced, strings.Join(got, "; "))
		}
	}
}
