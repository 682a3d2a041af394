package record_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pdmesh/pdmesh/sim/fakevllm/record"
)

func add(t *testing.T, r *record.Record, path, body string) {
	t.Helper()
	r.Add(httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil), []byte(body))
}

// The newest requests are kept, in their order.
func TestNewestAreKept(t *testing.T) {
	t.Parallel()
	r := &record.Record{Limit: 2}
	for _, path := range []string{"/a", "/b", "/c"} {
		add(t, r, path, "x")
	}
	all := r.All()
	if len(all) != 2 || all[0].Path != "/b" || all[1].Path != "/c" {
		t.Errorf("%+v", all)
	}
	r.Forget()
	if add(t, r, "/d", "x"); len(r.All()) != 1 || r.All()[0].Path != "/d" {
		t.Errorf("after Forget: %+v", r.All())
	}
}

// Bodies are bounded together, but the newest is kept however long it is.
func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	r := &record.Record{Limit: 10}
	long := string(make([]byte, 40<<20))
	add(t, r, "/a", long)
	add(t, r, "/b", long)
	if all := r.All(); len(all) != 1 || all[0].Path != "/b" {
		t.Errorf("%d are kept", len(all))
	}
}

func TestNoRecord(t *testing.T) {
	t.Parallel()
	r := &record.Record{Limit: -1}
	if add(t, r, "/a", "x"); len(r.All()) != 0 {
		t.Errorf("%+v", r.All())
	}
}
