package forward

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// remembering is a response on a connection that remembers.
type remembering struct {
	*httptest.ResponseRecorder
	place any
	again bool
}

func (r *remembering) Memo() (place *any, again bool) { return &r.place, r.again }

// liner takes lines for instances without TLS.
type liner struct{ upstream.Client }

func (liner) TakesLines(r *upstream.Request) bool { return r.Instance.Record.Scheme != "https" }

func (liner) Do(context.Context, *upstream.Request) (*upstream.Response, error) { panic("not asked") }

// What a connection remembers of its client's header is used for the very same
// header only, by the handler that made it, and where lines will do.
func TestHeaderIsMadeOnce(t *testing.T) {
	t.Parallel()
	plain := &instance.Instance{}
	secure := &instance.Instance{Record: instance.Record{Scheme: "https"}}
	newHandler := func(key string) *Handler {
		h, err := New(Options{Upstream: liner{}, EngineKey: key})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	h, other := newHandler("one"), newHandler("other")
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	r.Header = http.Header{"X-Tenant": {"a"}, "X-Api-Key": {"secret"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}}
	w := &remembering{ResponseRecorder: httptest.NewRecorder()}
	give := func(h *Handler, in *instance.Instance, id string) (*exchange, *upstream.Request) {
		x := h.newExchange(w, r, "/")
		q := &upstream.Request{Instance: in}
		x.giveHeader(q, id)
		return x, q
	}
	if _, q := give(h, plain, "1"); q.Header == nil || w.place != nil {
		t.Fatalf("a first request: %v, and %v is remembered", q.Header, w.place)
	}
	w.again = true
	for i := range 3 {
		x, q := give(h, plain, "second")
		sent := string(q.Lines.Text())
		for _, line := range []string{"X-Tenant: a\r\n", "X-Request-Id: second\r\n", "Authorization: Bearer one\r\n"} {
			if strings.Count(sent, line) != 1 {
				t.Errorf("request %d: not once %q in %q", i, line, sent)
			}
		}
		if q.Header != nil || strings.Count(sent, "\n") != 3 || !x.ownKey {
			t.Errorf("request %d: header %v, lines %q, own key %v", i, q.Header, sent, x.ownKey)
		}
		// The other leg of the pair, another attempt, one that needs the header, and
		// the one behind that.
		for _, leg := range []struct {
			in   *instance.Instance
			id   string
			full bool
		}{{plain, "second", false}, {plain, "third", false}, {secure, "third", true}, {plain, "third", true}, {plain, "fourth", false}} {
			q := &upstream.Request{Instance: leg.in}
			x.giveHeader(q, leg.id)
			id := q.Header.Get("X-Request-Id")
			if !leg.full {
				_, id, _ = strings.Cut(string(q.Lines.Text()), "X-Request-Id: ")
				id = strings.TrimSpace(id)
			} else if len(q.Lines.Text()) != 0 {
				t.Errorf("leg %+v: lines of another header, %q", leg, q.Lines.Text())
			}
			if id != leg.id || (q.Header != nil) != leg.full {
				t.Errorf("leg %+v: id %q, header %v", leg, id, q.Header)
			}
		}
		if w.place == nil {
			t.Fatal("nothing is remembered")
		}
		x.dropBody()
	}
	mine := w.place
	if _, q := give(other, plain, "5"); !strings.Contains(string(q.Lines.Text()), "Bearer other") || w.place == mine {
		t.Errorf("another handler sends %q", q.Lines.Text())
	}
	// What cannot be sent is refused by who sends it; what is long is not kept.
	for name, value := range map[string]string{"X-Bad": "a\nb", "X-Long": strings.Repeat("v", maxKeptLines)} {
		w.place = nil
		r.Header.Set(name, value)
		for _, first := range []bool{true, false} {
			before := w.place
			_, q := give(h, plain, "6")
			if m, ok := w.place.(*memo); !ok || len(m.lines.Text()) > 0 || q.Header == nil || len(q.Lines.Text()) != 0 {
				t.Errorf("%s: header %v, %d bytes of lines, %v is remembered", name, q.Header, len(q.Lines.Text()), w.place)
			}
			if !first && w.place != before {
				t.Errorf("%s: it was tried again", name)
			}
		}
		r.Header.Del(name)
	}
}
