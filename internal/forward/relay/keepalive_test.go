package relay

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// kept returns an Answer whose client is a recorder.
func kept(kind openai.Kind) (*Answer, *httptest.ResponseRecorder) {
	w := httptest.NewRecorder()
	return &Answer{
		Client: Std(w), Kind: kind, Ctx: context.Background(), ID: "i", Idle: time.Minute, Route: route{},
		Times: &stage.Times{Start: time.Now()}, Log: logrus.New(),
	}, w
}

func eventStream() *upstream.Response {
	return &upstream.Response{Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}}
}

// A stream that is silent gets a comment after each interval, and none while it sends something.
func TestKeepAlive_Interval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, w := kept(openai.Chat)
		a.StartKeepAlive(10 * time.Second)
		defer a.StopKeepAlive()
		check := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			a.keep.mu.Lock() // the timer writes to the same buffer
			defer a.keep.mu.Unlock()
			require.Equal(t, want, w.Body.String(), "after %v", after)
			w.Body.Reset()
		}
		check(9*time.Second, "")
		check(time.Second, keepAliveComment)
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/event-stream; charset=utf-8" || w.Header().Get("X-PD-Policy") != "" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
		check(20*time.Second, keepAliveComment+keepAliveComment)
		a.sendHeader(eventStream(), -1)
		check(0, ": X-Pd-Policy: p\n\n")
		got := a.reasons("Retry-After", "1\r\n2\x00")
		assert.Equal(t, ": Retry-After: 1  2 \n: X-Pd-Policy: p\n\n", string(got), "a value with control characters")
		for range 4 {
			time.Sleep(6 * time.Second)
			a.write([]byte("data: 1\n\n"))
		}
		check(9*time.Second, strings.Repeat("data: 1\n\n", 4))
		check(time.Second, keepAliveComment)
		a.StopKeepAlive()
		check(time.Hour, "")
		assert.Equal(t, 4, a.KeepAlives(), "keep-alives")
	})
}

// On /v1/messages, a comment precedes message_start and a ping follows it, even if the header was sent with
// the comment.
func TestKeepAlive_Messages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, w := kept(openai.Messages)
		a.StartKeepAlive(time.Second)
		defer a.StopKeepAlive()
		time.Sleep(1100 * time.Millisecond) // no two timers fire at the same time
		a.passKeepAlive([]byte(keepAlivePing))
		a.sendHeader(eventStream(), -1)
		time.Sleep(1100 * time.Millisecond)
		a.write([]byte("event: message_start\ndata: {}\n\n"))
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		a.StopKeepAlive()
		want := keepAliveComment + keepAliveComment + ": X-Pd-Policy: p\n\n" + keepAliveComment + "event: message_start\ndata: {}\n\n" + keepAlivePing
		assert.Equal(t, want, w.Body.String())
	})
}

// Errors after an early header are events in the format of the API, and the end is not clean. Without a
// keep-alive, they are answers with a status.
func TestKeepAlive_ErrorEvent(t *testing.T) {
	t.Parallel()
	own := leg.ProxyError(&openai.Error{Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, Message: "none", RetryAfter: 1500 * time.Millisecond})
	theirs := func(body string) leg.Answer { return leg.Answer{Status: http.StatusBadRequest, Body: []byte(body)} }
	const reasons = ": X-Pd-Policy: p\n\n"
	for _, tc := range []struct {
		name, outcome string
		kind          openai.Kind
		answer        leg.Answer
		want          string
	}{
		{"own", OutcomeUnavailable, openai.Chat, own, ": Retry-After: 2\n" + reasons + `data: {"error":{"message":"none","type":"ServiceUnavailableError","param":null,"code":503}}` + "\n\n"},
		{"own, messages", OutcomeUnavailable, openai.Messages, own, ": Retry-After: 2\n" + reasons + "event: error\ndata: " + `{"type":"error","error":{"type":"ServiceUnavailableError","message":"none"}}` + "\n\n"},
		{"engine's", OutcomeClientError, openai.Completion, theirs(`{"error":{"message":"m",` + "\n" + `"type":"t","param":"p","code":400}}`), reasons + `data: {"error":{"message":"m","type":"t","param":"p","code":400}}` + "\n\n"},
		{"engine's, messages", OutcomeClientError, openai.Messages, theirs(`{"type":"error","error":{"type":"t","message":"m"}}`), reasons + "event: error\ndata: " + `{"type":"error","error":{"type":"t","message":"m"}}` + "\n\n"},
		{"engine's, responses", OutcomeClientError, openai.Responses, theirs(`{"error":{"message":"m","type":"t","param":null,"code":400}}`), reasons + "event: error\ndata: " + `{"type":"error","sequence_number":0,"code":"t","message":"m","param":null}` + "\n\n"},
		{"flat", OutcomeClientError, openai.Chat, theirs(`{"object":"error","message":"m"}`), reasons + `data: {"error":{"message":"m","type":"InternalServerError","param":null,"code":400}}` + "\n\n"},
		{"FastAPI's", OutcomeClientError, openai.Chat, theirs(`{"detail":"Not Found"}`), reasons + `data: {"error":{"message":"Not Found","type":"InternalServerError","param":null,"code":400}}` + "\n\n"},
		{"text", OutcomeClientError, openai.Chat, theirs("no\nJSON"), reasons + `data: {"error":{"message":"no\nJSON","type":"InternalServerError","param":null,"code":400}}` + "\n\n"},
	} {
		for _, early := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				a, w := kept(tc.kind)
				a.Log.(*logrus.Logger).SetOutput(t.Output()) //nolint:forcetypeassert // kept made it
				a.StartKeepAlive(time.Second)
				if early {
					time.Sleep(time.Second)
					synctest.Wait()
				}
				a.SendFailure(&leg.Failure{Class: leg.Status4xx, Answer: tc.answer})
				time.Sleep(time.Hour)
				assert.True(t, a.Outcome == tc.outcome && a.Broken == early,
					"%s, early %v: outcome %s, broken %v", tc.name, early, a.Outcome, a.Broken)
				if !early {
					assert.True(t, w.Code == tc.answer.Status && a.Status == w.Code && a.Late == 0, "%s: status %d", tc.name, w.Code)
					return
				}
				if got := w.Body.String(); got != keepAliveComment+tc.want || a.Status != http.StatusOK || a.Late != tc.answer.Status {
					t.Errorf("%s: status %d, late %d, %q, want %q", tc.name, a.Status, a.Late, got, keepAliveComment+tc.want)
				}
			})
		}
	}
}
