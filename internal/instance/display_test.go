package instance_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The status and its reason are derived from record, view, intent and opinion, in a fixed order.
func TestStatus(t *testing.T) {
	t.Parallel()
	dead := instance.Opinion{View: instance.Ejected, Reason: "connection refused"}
	failing := instance.Opinion{View: instance.Ejected, Reason: "3 failures", Reachable: true}
	zero := 0
	for _, tc := range []struct {
		name    string
		change  func(*instance.Instance)
		opinion instance.Opinion
		status  string
		reason  string
		serves  bool
	}{
		{name: "ready", status: "ready", serves: true},
		{name: "dead", opinion: dead, status: "ejected", reason: "connection refused"},
		{name: "failing", opinion: failing, status: "ejected", reason: "3 failures", serves: true},
		{name: "silent", opinion: instance.Opinion{Reason: "no response for 5s"}, status: "ready", reason: "no response for 5s", serves: true},
		{name: "down", change: func(in *instance.Instance) { in.Record.State = instance.Down }, opinion: dead, status: "down"},
		{name: "slow", change: func(in *instance.Instance) {
			in.Record.State, in.Record.Cause = instance.Down, instance.CauseSlow
		}, opinion: dead, status: "down", serves: true},
		{name: "slow and asleep", change: func(in *instance.Instance) {
			in.Record.State, in.Record.Cause = instance.Down, instance.CauseSlow
		}, opinion: instance.Opinion{View: instance.Sleeping}, status: "down"},
		{name: "orphan", change: func(in *instance.Instance) { in.View, in.Reason = instance.Orphan, "its lease ended" }, status: "orphan", reason: "its lease ended", serves: true},
		{name: "dead orphan", change: func(in *instance.Instance) { in.View, in.Reason = instance.Orphan, "its lease ended" }, opinion: dead, status: "ejected", reason: "connection refused; its lease ended"},
		{name: "cordoned", change: func(in *instance.Instance) { in.Intent, in.Reason = instance.Cordon, "cordon by me" }, opinion: dead, status: "cordoned", reason: "connection refused; cordon by me"},
		{name: "unverified", change: func(in *instance.Instance) {
			in.View, in.Verified, in.Reason = instance.Unverified, false, "no answer yet"
		}, opinion: dead, status: "unverified", reason: "no answer yet"},
		{name: "unverified and cordoned", change: func(in *instance.Instance) {
			in.View, in.Verified, in.Intent = instance.Unverified, false, instance.Cordon
		}, status: "cordoned"},
		{name: "pending and cordoned", change: func(in *instance.Instance) {
			in.View, in.Verified, in.Intent = instance.Pending, false, instance.Cordon
		}, status: "pending"},
		{name: "rejected", change: func(in *instance.Instance) { in.View, in.Verified = instance.Rejected, false }, status: "rejected"},
		{name: "of another proxy", change: func(in *instance.Instance) { in.View = instance.Elsewhere }, status: "elsewhere"},
		{name: "weight 0", change: func(in *instance.Instance) { in.Record.Weight = &zero }, status: "ready"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			in := &instance.Instance{Verified: true, Record: instance.Record{State: instance.Ready, Models: []string{"m"}}}
			if tc.change != nil {
				tc.change(in)
			}
			before := *in
			seen := in.Seen(tc.opinion)
			assert.True(t, seen.Status() == tc.status && seen.Reason == tc.reason && seen.List().Status == tc.status,
				"%q (%s), want %q (%s)", seen.Status(), seen.Reason, tc.status, tc.reason)
			sel, err := instance.ParseSelector("state=" + tc.status)
			assert.True(t, err == nil && sel.Matches(seen), "state=%s: %v", tc.status, err)
			assert.Equal(t, tc.serves, in.CanServe(tc.opinion), "it serves")
			assert.Equal(t, before.View, in.View, "the instance itself has changed")
			assert.Equal(t, before.Reason, in.Reason, "the instance itself has changed")
		})
	}
}

func TestWarning(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, transfer, record, proxy string
		warned                        bool
	}{
		{"NIXL asked as plain", "nixl", "", "plain", true},
		{"the record says plain", "nixl", "plain", "nixl", true},
		{"NIXL by the proxy's default", "nixl", "", "nixl", false},
		{"NIXL by the record", "nixl", "NixlConnector", "plain", false},
		{"the default is not known", "nixl", "", "", false},
		{"nothing shows", "", "", "plain", false},
	} {
		in := instance.Instance{Record: instance.Record{Transfer: tc.transfer, Connector: tc.record}}
		if got := in.Warning(tc.proxy); (got != "") != tc.warned || tc.warned && !strings.Contains(got, "--connector nixl") {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
}
