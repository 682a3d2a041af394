package flow

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// After three requests in a row without notifications, an instance is bypassed. Trial requests follow after
// 1, 2, 4 min and so on, up to 10 min. Warnings about it are at least a minute apart. One successful trial
// ends the bypass.
func TestUnnotified_Trials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, lines := logtest.NewNullLogger()
		u := &unnotified{log: log}
		in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "p:1"}, Record: instance.Record{ID: "first"}}
		members := instance.NewSnapshot(1, []*instance.Instance{in})
		fail := func() { u.failed(in, "tcp://agent:8500", errors.New("no notification")) }
		for range 2 {
			fail()
			require.True(t, !u.bypassed(in, true) && len(u.list(members)) <= 0, "bypassed too early")
		}
		u.arrived(in) // interrupts the row: the count begins again
		for range bypassAfter {
			fail()
		}
		fail() // of a request that had begun before
		if list := u.list(members); list[in.Key] != "tcp://agent:8500" {
			t.Errorf("listed: %v", list)
		}
		warned := len(lines.AllEntries())
		for _, pause := range []int{1, 2, 4, 8, 10, 10} {
			time.Sleep(time.Duration(pause)*time.Minute - time.Second)
			require.True(t, u.bypassed(in, true), "tried before %d minutes", pause)
			time.Sleep(time.Second)
			require.False(t, u.bypassed(in, false) || u.bypassed(in, true), "not tried after %d minutes", pause)
			for range 3 {
				require.True(t, u.bypassed(in, true), "two trials at once")
			}
			fail()
		}
		assert.Equal(t, 6, len(lines.AllEntries())-warned, "warnings of 6 trials")
		time.Sleep(longestTrial)
		require.False(t, u.bypassed(in, true), "not tried")
		u.arrived(in)
		assert.True(t, !u.bypassed(in, true) && len(u.list(members)) <= 0 && lines.LastEntry().Level == logrus.InfoLevel,
			"after a trial that succeeded: %v, %v", u.list(members), lines.LastEntry())
	})
}

// A new incarnation is tried at once, and an instance that has left is forgotten.
func TestUnnotified_Incarnations(t *testing.T) {
	t.Parallel()
	log, _ := logtest.NewNullLogger()
	u := &unnotified{log: log}
	in := &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "p:1"}, Record: instance.Record{ID: "first"}}
	for range bypassAfter {
		u.failed(in, "", errors.New("no notification"))
	}
	again := *in
	again.Record.ID = "second"
	assert.True(t, u.bypassed(in, true) && !u.bypassed(&again, true) && len(u.byKey) == 0,
		"%d entries after a restart", len(u.byKey))
	for range bypassAfter {
		u.failed(&again, "", errors.New("no notification"))
	}
	if list := u.list(instance.NewSnapshot(2, nil)); len(list) > 0 || len(u.byKey) != 0 {
		t.Errorf("listed: %v", list)
	}
}
