package forward

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/upstream"
)

// liney is a ResponseWriter that takes lines.
type liney struct {
	*httptest.ResponseRecorder
	lines  string
	length int64
}

func (l *liney) WriteLines(status int, lines []byte, name, value string, length int64) {
	l.lines, l.length = string(lines)+name+": "+value+"\r\n", length
	l.ResponseRecorder.WriteHeader(status)
}

// A client gets the same of an engine's header whether that is known or not: nothing
// about the connection, none of the names that are the proxy's, and one id.
func TestAnswerHeader(t *testing.T) {
	t.Parallel()
	h, err := New(Options{Trace: func(*http.Request) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{
		"Server": {"uvicorn"}, "X-Two": {"a", "b"}, "Content-Type": {"application/json"},
		"Connection": {"keep-alive"}, "Keep-Alive": {"5"}, "Date": {"then"}, "X-Request-Id": {"engine's"}, "X-Pd-Decode": {"a secret"},
	}
	want := []string{"Content-Type: application/json", "Server: uvicorn", "X-Request-Id: mine", "X-Two: a", "X-Two: b"}
	memo := new(upstream.Memo)
	for i, tc := range []struct {
		memo  *upstream.Memo
		trace string
		lines bool
	}{{nil, "", false}, {memo, "", true}, {memo, "", true}, {memo, "1", false}, {memo, "0", true}} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		r.Header = http.Header{"X-Request-Id": {"mine"}, "X-Pd-Trace": {tc.trace}}
		w := &liney{ResponseRecorder: httptest.NewRecorder()}
		x := h.newExchange(w, r, "/")
		x.beginAnswer(&upstream.Response{Status: http.StatusOK, Header: header, Memo: tc.memo}, 7)
		var got []string
		for name, values := range w.Result().Header {
			if name == "Content-Length" || strings.HasPrefix(name, "X-Pd-") {
				continue
			}
			for _, v := range values {
				got = append(got, name+": "+v)
			}
		}
		length := w.Header().Get("Content-Length")
		if w.lines != "" {
			got = append(got, strings.Split(strings.TrimSuffix(w.lines, "\r\n"), "\r\n")...)
			if w.length == 7 {
				length = "7"
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || length != "7" {
			t.Errorf("answer %d: %q, length %s", i, got, length)
		}
		if (w.lines != "") != tc.lines || (w.Header().Get("X-Pd-Policy") != "") != (tc.trace == "1") {
			t.Errorf("answer %d: lines %q, traced %v", i, w.lines, w.Header())
		}
	}
	// A header that something else has put there goes out as well.
	w := &liney{ResponseRecorder: httptest.NewRecorder()}
	w.Header().Set("X-Before", "1")
	x := h.newExchange(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil), "/")
	x.beginAnswer(&upstream.Response{Status: http.StatusOK, Header: header, Memo: memo}, -1)
	if got := w.Result().Header; w.lines != "" || got.Get("X-Before") != "1" || got.Get("Server") != "uvicorn" {
		t.Errorf("%q, %v", w.lines, got)
	}
}

// Ids are UUIDs of version 4 with a nonce behind them, all different, and those of a
// server that holds on to headers do not change with the exchange that made them.
func TestIDs(t *testing.T) {
	t.Parallel()
	h, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range 100 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
		w := &begun{ResponseRecorder: httptest.NewRecorder(), written: true}
		x := h.newExchange(w, r, "/")
		id, engineID := x.entry.RequestID, x.engineID()
		if len(id) != 36 || len(engineID) != 45 || engineID[:36] != id || engineID[36] != '-' || id[14] != '4' || !strings.Contains("89ab", id[19:20]) ||
			strings.Trim(id, "0123456789abcdef-") != "" || strings.Count(id, "-") != 4 || seen[id] {
			t.Fatalf("id %q, the engines' %q", id, engineID)
		}
		seen[id] = true
		if next := x.engineID(); next[:36] != id || next == engineID {
			t.Errorf("a second attempt is %q after %q", next, engineID)
		}
		kept := w.Header()["X-Request-Id"][0]
		want := strings.Clone(id)
		x.unwatched = x.watch.Stop()
		x.dropBody()
		x.recycle()
		if i%2 == 0 {
			h.newExchange(&liney{ResponseRecorder: httptest.NewRecorder()}, r, "/")
		}
		if kept != want {
			t.Fatalf("a header changed from %q to %q", want, kept)
		}
	}
}
