package flow

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/scratch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

type source struct{ members *instance.Snapshot }

func (s source) Snapshot() *instance.Snapshot { return s.members }

// healthy has nothing against any instance.
type healthy struct{ Health }

func (healthy) Troubled() []instance.Key             { return nil }
func (healthy) Available(instance.Key) bool          { return true }
func (healthy) Unreachable(instance.Key) bool        { return false }
func (healthy) SilentFor(instance.Key) time.Duration { return 0 }
func (healthy) Share(instance.Key) float64           { return 1 }

// While a tool call is open, no engine is asked whether the stream may move: that uses up no tries.
func TestCompletion_MayMoveInToolCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Duration(0)
		list := []*instance.Instance{{Key: instance.Key{Role: instance.Decode, Address: "a:1"}}, {Key: instance.Key{Role: instance.Decode, Address: "b:1"}}}
		for _, in := range list {
			in.Verified, in.Record = true, instance.Record{Models: []string{"m"}, State: instance.Ready, Connector: "plain"}
		}
		list[0].Intent, list[0].MoveAfter = instance.Drain, &now
		picker := sched.New(sched.Options{
			Source: source{instance.NewSnapshot(1, list)}, Health: healthy{}, Connector: func(*instance.Instance) string { return "plain" },
			Build: func(*instance.Instance) string { return "" }, Blocks: func(*instance.Instance) int { return 0 },
		})
		s := &Settings{Config: Config{Picker: picker, Health: healthy{}, Fallback: true}}
		req, err := request.Parse(openai.Chat, []byte(`{"model":"m","stream":true,"messages":[]}`))
		require.NoError(t, err)
		c := &completion{r: &Request{Settings: s}, s: s, req: req, kind: openai.Chat, progress: continuation.New(req, 1, scratch.NewBodies(0))}
		c.r.attempts.wanted.Model = "m"
		_, err = c.progress.Pass([]byte(`data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]},"token_ids":[7]}],"prompt_token_ids":[5]}` + "\n\n"))
		require.NoError(t, err)
		for range 2 * maxTriedMoves {
			if time.Sleep(movePause); c.MayMove(&leg.Leg{Instance: list[0]}) {
				t.Fatal("it moves in a tool call")
			}
		}
		if !c.canLeave(list[0]) || c.triedMoves != 0 {
			t.Errorf("%d tries", c.triedMoves)
		}
	})
}
