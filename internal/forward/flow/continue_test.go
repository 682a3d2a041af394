package flow

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

type source struct{ members *instance.Snapshot }

func (s source) Snapshot() *instance.Snapshot { return s.members }

// healthy has no finding about any instance.
type healthy struct{ Health }

func (healthy) Troubled() []instance.Key             { return nil }
func (healthy) Available(instance.Key) bool          { return true }
func (healthy) Failing(instance.Key, string) bool    { return false }
func (healthy) Unreachable(instance.Key) bool        { return false }
func (healthy) SilentFor(instance.Key) time.Duration { return 0 }
func (healthy) Share(instance.Key) float64           { return 1 }

// decodes returns two decode instances of a model m.
func decodes() []*instance.Instance {
	list := []*instance.Instance{{Key: instance.Key{Role: instance.Decode, Address: "a:1"}}, {Key: instance.Key{Role: instance.Decode, Address: "b:1"}}}
	for _, in := range list {
		in.Verified, in.Record = true, instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"}
	}
	return list
}

// streaming returns a request for a stream of this kind that may be continued once.
func streaming(t *testing.T, kind openai.Kind, list []*instance.Instance) *completion {
	picker := sched.New(sched.Options{
		Source: source{instance.NewSnapshot(1, list)}, Health: healthy{}, PairKey: func(*instance.Instance) connector.PairKey { return connector.PairKey{Connector: "plain"} },
	})
	s := &Settings{Config: Config{Picker: picker, Health: healthy{}, Fallback: true}}
	body := `{"model":"m","stream":true,"messages":[]}`
	if kind == openai.Completion {
		body = `{"model":"m","stream":true,"prompt":"x"}`
	}
	req, err := request.Parse(kind, []byte(body))
	require.NoError(t, err)
	return &completion{r: &Request{Settings: s}, s: s, req: req, kind: kind, progress: continuation.New(req, 1, scratch.NewBodies(0))}
}

// While a tool call is open, the proxy does not try to move the stream, so it uses up no tries.
func TestCompletion_MayMoveInToolCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list := decodes()
		now := time.Duration(0)
		list[0].Intent, list[0].MoveAfter = instance.Drain, &now
		c := streaming(t, openai.Chat, list)
		c.r.attempts.wanted.Model = "m"
		_, err := c.progress.Pass([]byte(`data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]},"token_ids":[7]}],"prompt_token_ids":[5]}` + "\n\n"))
		require.NoError(t, err)
		for range 2 * maxTriedMoves {
			if time.Sleep(movePause); c.MayMove(&leg.Leg{Instance: list[0]}) {
				t.Fatal("it moves in a tool call")
			}
		}
		assert.True(t, c.canLeave(list[0]) && c.triedMoves == 0, "%d tries", c.triedMoves)
	})
}

// counting is a Recorder that ignores failures and retries.
type counting struct{ Recorder }

func (counting) Failed(instance.Key, leg.Class)   {}
func (counting) Retried(instance.Role, leg.Class) {}

// tokenizer is an engine that fails to detokenize at first.
type tokenizer struct {
	upstream.Client
	asked int
}

func (e *tokenizer) ReleasesBody(*upstream.Request) bool { return true }

func (e *tokenizer) Do(context.Context, *upstream.Request) (*upstream.Response, error) {
	if e.asked++; e.asked == 1 {
		return nil, &upstream.Error{Stage: upstream.StageSent, Err: io.EOF}
	}
	return &upstream.Response{Status: http.StatusOK, Length: -1, Body: io.NopCloser(strings.NewReader(`{"prompt":"a"}`))}, nil
}

// A suspension of the proxy does not end a stream that is about to continue: its turn, the text of its tokens
// and its next leg get a few seconds more, once.
func TestCompletion_ContinuesAfterSuspension(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := streaming(t, openai.Completion, decodes())
		c.s.Recorder, c.s.Log = counting{}, &logrus.Logger{}
		c.r.Answer = &relay.Answer{Times: &stage.Times{Start: time.Now()}}
		c.r.Origin = &leg.Origin{Client: t.Context(), Settings: &leg.Settings{Upstream: &tokenizer{}, Removed: func(*sched.Assignment) error { return nil }}}
		c.r.begin(sched.Request{})
		_, err := c.progress.Pass([]byte(`data: {"id":"c","choices":[{"index":0,"text":"a","prompt_token_ids":[5],"token_ids":[7]}]}` + "\n\n"))
		require.NoError(t, err)
		d, err := c.s.Picker.Pick(sched.Request{Role: instance.Decode, Model: "m"})
		require.NoError(t, err)
		defer d.Done()
		for range c.maxMoves() {
			time.AfterFunc(3*time.Second, c.s.pace.TryBegin(c.maxMoves))
		}
		c.move = move{lost: time.Now().Add(-continueWithin - time.Minute)} // the timers are late
		why := c.prepare(d, &leg.Failure{Class: leg.Removed, Rule: leg.Removed.Rule()})
		require.True(t, why == "" && c.move.how == continuation.HowPrompt, "it does not go on: %q %q", why, c.move.how)
		c.move.endTurn()
		l := c.r.Origin.Begin(d, leg.Wait{Limit: leg.GraceLimit(time.Hour)})
		defer l.End()
		defer c.move.bound(l)()
		time.Sleep(4 * time.Second)
		assert.NoError(t, context.Cause(l), "the leg was ended at once")
		time.Sleep(2 * time.Second)
		if limit, ok := errors.AsType[*leg.LimitError](context.Cause(l)); !ok || limit.Limit.Class != leg.NotContinued {
			t.Errorf("the leg was ended by %v", context.Cause(l))
		}
		// A leg that begins in time ends in time.
		c.move = move{lost: time.Now()}
		last := c.r.Origin.Begin(d, leg.Wait{Limit: leg.GraceLimit(time.Hour)})
		defer last.End()
		defer c.move.bound(last)()
		time.Sleep(continueWithin + time.Millisecond)
		assert.Error(t, last.Err(), "the leg is not bounded")
	})
}
