package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// bootstrapServer answers according to its fields; only goroutines of the bubble use it, one at a time.
type bootstrapServer struct {
	id    string // "" while it does not answer
	asked int
}

func (b *bootstrapServer) engineIDs(context.Context) (map[string]string, error) {
	b.asked++
	if b.id == "" {
		return nil, errors.New("connection refused")
	}
	return map[string]string{"0": b.id}, nil
}

// In each incarnation, the engine ids are queried until they are
// known. Until then, the instance is not ready.
func TestEngineIDs_EachIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stats := idleStats()
		stats.StartedAt = time.Now().UTC()
		server := &bootstrapServer{}
		log, out := silentLog(), new(testkit.Buffer)
		log.SetOutput(out)
		r := start(t, &fakeEngine{stats: stats}, Options{EngineIDs: server.engineIDs, Log: log, Base: instance.Record{EngineIDs: map[string]string{"0": "guessed"}}})
		r.after(time.Second, nil)
		r.Registered(true)
		if s := r.Status(); s.Phase != Registering || s.Reason != "connection refused" || s.Record.State != instance.Starting {
			t.Errorf("status %+v", s)
		}
		r.after(4*time.Second, func(*fakeEngine) { server.id = "first" }) // t=5: asked at 0, 2, 4
		r.after(2*time.Second, nil)
		s := r.Status()
		assert.True(t, s.Phase == Serving && s.Reason == "", "status %+v", s)
		r.after(20*time.Second, func(e *fakeEngine) { // t=27
			assert.Equal(t, 4, server.asked, "asked %d times, not at 0, 2, 4 and 6", server.asked)
			server.id, e.stats.StartedAt = "", e.stats.StartedAt.Add(time.Minute)
		})
		r.after(4*time.Second, func(*fakeEngine) { server.id = "second" })
		r.after(2*time.Second, func(e *fakeEngine) { e.err = errRefused }) // t=33
		r.after(time.Second, func(e *fakeEngine) { e.err, server.id = nil, "third" })
		r.after(6*time.Second, nil)
		r.leave()

		var got []string
		ids := map[string]bool{}
		for _, rec := range r.reg.records {
			got = append(got, string(rec.State)+" "+rec.EngineIDs["0"])
			ids[rec.ID] = true
		}
		want := []string{"starting ", "ready first", "starting ", "ready second", "ready third", "draining third"}
		d := cmp.Diff(want, got)
		assert.True(t, d == "" && len(ids) == 3, "%d incarnations, %s", len(ids), d)
		for _, say := range []string{"not ready: connection refused", "bootstrap server answers: ready"} {
			n := strings.Count(out.String(), say)
			assert.Equal(t, 2, n, "%q occurs %d times in\n%s", say, n, out)
		}
	})
}

// An engine that ends before its bootstrap server has answered goes down and comes back like any other.
func TestDownWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &bootstrapServer{}
		r := start(t, &fakeEngine{stats: vllm.Stats{Complete: true}}, Options{EngineIDs: server.engineIDs})
		r.after(time.Second, func(e *fakeEngine) { e.err = errRefused })
		r.after(20*time.Second, func(e *fakeEngine) { e.err, server.id = nil, "e" })
		r.after(20*time.Second, nil)
		r.leave()
		var got []string
		for _, rec := range r.reg.records {
			got = append(got, string(rec.State)+" "+rec.Cause+rec.EngineIDs["0"])
		}
		assert.Empty(t, cmp.Diff([]string{"starting no engine ids", "down connection refused", "ready e", "draining e"}, got))
	})
}
