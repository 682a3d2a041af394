package notice_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/observe/notice"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// A notice reports KV events that cannot be followed, with the reason.
func TestKVEvents_NotFollowed(t *testing.T) {
	t.Parallel()
	f := newFleet(in(instance.Decode, "b:1"))
	got := notice.View{
		Snapshot: f.snapshot, Counts: f.counts, Opinion: f.opinion, Fallback: true,
		PairKey: members.PairKey, NoKVEvents: map[string]string{"p:2": "it connects", "p:1": "it needs a wildcard"},
	}.Texts()
	want := "no KV events from p:1: it needs a wildcard\nno KV events from p:2: it connects"
	assert.Equal(t, want, strings.Join(got, "\n"), "%q", got)
}
