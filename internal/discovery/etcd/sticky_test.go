package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

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
	if perr != nil {
		t.Fatal(perr)
	}
	r.Done(balancer.DoneInfo{Err: err})
	return r.SubConn.(*member).address
}

func TestSticky_MemberChoice(t *testing.T) {
	t.Parallel()
	f := &memberChoice{silent: map[string]int{}}
	a, b, c := &member{address: "a"}, &member{address: "b"}, &member{address: "c"}
	if _, err := connected(f).Pick(balancer.PickInfo{}); !errors.Is(err, balancer.ErrNoSubConnAvailable) {
		t.Fatalf("without a connection: %v", err)
	}
	p := connected(f, a, b, c)
	first := call(t, p, nil)
	for range 20 {
		if got := call(t, p, status.Error(codes.PermissionDenied, "no")); got != first {
			t.Fatalf("a member that answers is left for %s", got)
		}
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
	if got := call(t, p, broken); got != "b" {
		t.Errorf("picked %s, which is away", got)
	}
	if got := call(t, p, nil); got != "b" {
		t.Errorf("picked %s, which is away", got)
	}
	p = connected(f, a, b, c)
	if got := call(t, p, nil); got != "b" {
		t.Errorf("left b, which answered, for %s", got)
	}
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
			if got := unanswered(tc.err, tc.waited); got != tc.want {
				t.Errorf("unanswered(%v, %s) = %t", tc.err, tc.waited, got)
			}
		})
	}
}

func TestPatience(t *testing.T) {
	t.Parallel()
	p := Patience{Longest: LongestWait}
	if p.Limit() != firstWait {
		t.Errorf("begins with %s", p.Limit())
	}
	p.Learn(time.Millisecond, false) // refused at once
	if p.Limit() != firstWait {
		t.Errorf("after a refusal %s", p.Limit())
	}
	p.Learn(p.Limit(), false)
	if p.Limit() != firstWait {
		t.Errorf("after one silence, which another member may end, %s", p.Limit())
	}
	for range 5 {
		p.Learn(p.Limit(), false)
	}
	if p.Limit() != LongestWait {
		t.Errorf("after silence %s", p.Limit())
	}
	p.Learn(700*time.Millisecond, true)
	if got := p.Limit(); got <= 2*700*time.Millisecond || got > LongestWait {
		t.Errorf("after a slow answer %s", got)
	}
	p.Learn(time.Millisecond, true)
	if p.Limit() != firstWait {
		t.Errorf("after a quick answer %s", p.Limit())
	}
	if got := p.LimitFor(10000); got <= 2*firstWait {
		t.Errorf("for ten thousand entries %s", got)
	}
}
