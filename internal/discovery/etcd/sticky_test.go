package etcd

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

// member simulates a connection to a member.
type member struct {
	balancer.SubConn
	address string
}

func connected(f *memberChoice, members ...*member) balancer.Picker {
	info := base.PickerBuildInfo{ReadySCs: map[balancer.SubConn]base.SubConnInfo{}}
	for _, m := range members {
		info.ReadySCs[m] = base.SubConnInfo{Address: resolver.Address{Addr: m.address}}
	}
	return f.Build(info)
}

// call picks a member for a call and ends it.
func call(t *testing.T, p balancer.Picker, err error) string {
	t.Helper()
	r, perr := p.Pick(balancer.PickInfo{})
	require.NoError(t, perr)
	r.Done(balancer.DoneInfo{Err: err})
	return r.SubConn.(*member).address
}

func TestSticky_MemberChoice(t *testing.T) {
	t.Parallel()
	f := &memberChoice{silent: map[string]int{}}
	a, b, c := &member{address: "a"}, &member{address: "b"}, &member{address: "c"}
	_, err := connected(f).Pick(balancer.PickInfo{})
	require.ErrorIs(t, err, balancer.ErrNoSubConnAvailable, "without a connection")
	p := connected(f, a, b, c)
	first := call(t, p, nil)
	for range 20 {
		require.Equal(t, first, call(t, p, status.Error(codes.PermissionDenied, "no")),
			"member after an answer of the first")
	}
	// A member that fails is avoided until all others have failed since then.
	broken := status.Error(codes.Unavailable, "etcdserver: no leader")
	var order []string
	for range 6 {
		order = append(order, call(t, p, broken))
	}
	if order[0] == order[1] || order[1] == order[2] || order[0] == order[2] || order[3] != order[0] || order[4] != order[1] || order[5] != order[2] {
		t.Errorf("members were tried in the order %v", order)
	}
	// An unreachable member is not picked, and its replacement is kept when it returns.
	p = connected(f, b)
	assert.Equal(t, "b", call(t, p, broken), "member after a failure of the other")
	assert.Equal(t, "b", call(t, p, nil), "member after a failure of the other")
	p = connected(f, a, b, c)
	assert.Equal(t, "b", call(t, p, nil), "member after an answer of b")
}

func TestUnanswered(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		err    error
		waited time.Duration
		want   bool
	}{
		{"deadline", status.Error(codes.DeadlineExceeded, "x"), time.Second, true},
		{"deadline of the context", context.DeadlineExceeded, time.Second, true},
		{"deadline of a caller in a hurry", status.Error(codes.DeadlineExceeded, "x"), 20 * time.Millisecond, false},
		{"unavailable", status.Error(codes.Unavailable, "x"), 0, true},
		{"given up by the caller", status.Error(codes.Canceled, "x"), time.Minute, false},
		{"refused", status.Error(codes.PermissionDenied, "x"), 0, false},
		{"out of space", status.Error(codes.ResourceExhausted, "x"), 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, tc.want, unanswered(tc.err, tc.waited), "unanswered(%v, %s)", tc.err, tc.waited)
		})
	}
}

func TestPatience(t *testing.T) {
	t.Parallel()
	p := Patience{Longest: LongestWait}
	assert.Equal(t, firstWait, p.Limit(), "at the beginning")
	p.Learn(time.Millisecond, false) // refused at once
	assert.Equal(t, firstWait, p.Limit(), "after a refusal")
	p.Learn(p.Limit(), false)
	assert.Equal(t, firstWait, p.Limit(), "after one silence, which another member may end")
	for range 5 {
		p.Learn(p.Limit(), false)
	}
	assert.Equal(t, LongestWait, p.Limit(), "after silence")
	p.Learn(700*time.Millisecond, true)
	got := p.Limit()
	assert.True(t, got > 2*700*time.Millisecond && got <= LongestWait, "after a slow answer %s", got)
	p.Learn(time.Millisecond, true)
	assert.Equal(t, firstWait, p.Limit(), "after a quick answer")
	got = p.LimitFor(10000)
	assert.Greater(t, got, 2*firstWait, "for ten thousand entries %s", got)
}
