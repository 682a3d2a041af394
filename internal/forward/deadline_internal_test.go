package forward

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// succeed gives the leg behind before, as begin does.
func succeed(before *leg, d time.Duration, cause error) *leg {
	l := &leg{client: before.client}
	if before.over {
		l.deadline, before.deadline = before.deadline, nil
	}
	l.next(d, cause)
	return l
}

// A leg takes over the deadline of the one before only as long as that can
// neither end the new leg for the old one's cause nor the old one again.
func TestDeadlineOfTheNextLeg(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := &leg{client: t.Context()}
		first.next(time.Second, errPrefillTimeout)
		kept := first.deadline
		time.Sleep(500 * time.Millisecond) // of the bubble's own clock
		first.end()
		second := succeed(first, time.Second, errFirstByteTimeout)
		if second.deadline != kept || first.deadline != nil {
			t.Error("a deadline that did not go off was not taken over")
		}
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if second.Err() != nil {
			t.Fatalf("ended too early: %v", second.Err())
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if !errors.Is(second.Err(), errFirstByteTimeout) || !errors.Is(first.Err(), errLegDone) {
			t.Fatalf("first: %v, second: %v", first.Err(), second.Err())
		}
		second.end()
		third := succeed(second, time.Second, errIdleTimeout)
		if third.deadline == kept {
			t.Error("a deadline that went off was taken over")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !errors.Is(third.Err(), errIdleTimeout) {
			t.Fatalf("third: %v", third.Err())
		}
		// It has gone off; moved on, its function may still run for the old leg.
		third.rearm(time.Hour)
		third.end()
		if third.over {
			t.Error("a deadline that had gone off before it was moved would be taken over")
		}
	})
}

// The client's own name is kept where it can stand in a header; a new one is a
// UUID, and begins what the engines are told.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for _, tc := range []struct{ name, sent string }{
		{"none", ""}, {"the client's", "mine-1"}, {"a space", "a b"}, {"too long", strings.Repeat("x", maxRequestID+1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
			r.Header.Set("X-Request-Id", tc.sent)
			x := (&Handler{}).newExchange(w, r, "/")
			id := x.entry.RequestID
			if kept := tc.name == "the client's"; kept != (id == tc.sent) || !kept && !uuid.MatchString(id) {
				t.Fatalf("%q", id)
			}
			if got := w.Header().Get("X-Request-Id"); got != id {
				t.Errorf("the client is told %q", got)
			}
			seen := map[string]bool{}
			for range 3 {
				engine := x.engineID()
				if nonce, ok := strings.CutPrefix(engine, id+"-"); !ok || !regexp.MustCompile("^[0-9a-f]{8}$").MatchString(nonce) || seen[engine] {
					t.Errorf("for the engines %q, after %v", engine, seen)
				}
				seen[engine] = true
			}
		})
	}
}

// A header that was made is not changed by the next.
func TestHeadersOfTwoAttempts(t *testing.T) {
	t.Parallel()
	x := &exchange{h: &Handler{}, r: httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)}
	first, second := x.pairHeader("a"), x.pairHeader("b")
	if first.Get("X-Request-Id") != "a" || second.Get("X-Request-Id") != "b" {
		t.Fatalf("%v, %v", first, second)
	}
}

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
