package etcd

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"
)

// The client library distributes its calls over the members of etcd by round robin. A
// member that hangs then gets every third call until the pings of its connection
// detect it, 13 s later: a list, an audit and the new watch may each reach it, and each
// waits for its deadline. This policy sends all calls of a client to one member, so that
// a call without an answer implies that the watch gets no events either. The next call
// goes to another member.

// stickyPolicy is the name of the balancer policy in gRPC.
const stickyPolicy = "pd_sticky"

// stickyConfig is the service config that makes a client use the policy.
const stickyConfig = `{"loadBalancingConfig":[{"` + stickyPolicy + `":{}}]}`

// gRPC looks up a policy by its name, and Register must not be called after the
// initialization of the program.
var _ = func() bool { balancer.Register(stickyBuilder{}); return true }()

type stickyBuilder struct{}

func (stickyBuilder) Name() string { return stickyPolicy }

// Build returns the balancer of one client. It keeps connections to all members, so
// that a switch needs no dial.
func (stickyBuilder) Build(cc balancer.ClientConn, o balancer.BuildOptions) balancer.Balancer {
	b := base.NewBalancerBuilder(stickyPolicy, &memberChoice{silent: make(map[string]int)}, base.Config{})
	return stickyBalancer{b.Build(cc, o)}
}

// stickyBalancer passes on the addresses in random order: the first connected member is
// used first, and not all clients should use the same member.
type stickyBalancer struct{ balancer.Balancer }

// UpdateClientConnState receives the list of members.
func (b stickyBalancer) UpdateClientConnState(s balancer.ClientConnState) error {
	var all []resolver.Address
	for _, e := range s.ResolverState.Endpoints {
		all = append(all, e.Addresses...)
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	s.ResolverState.Addresses = all
	return b.Balancer.UpdateClientConnState(s)
}

// memberChoice is the choice of the member that gets the calls of one client.
type memberChoice struct {
	mu        sync.Mutex // guards all below
	preferred string     // address; "" before the first call
	// silent has, for each member, the count at which it was last found silent: the member
	// with the least number was silent longest ago, or never. No member is excluded
	// permanently.
	silent map[string]int
	count  int
}

// shortest is the least duration of a call whose deadline counts as silence of the member. Callers
// may set shorter deadlines for their own reasons.
const shortest = 250 * time.Millisecond

// Build returns the picker for the members that are connected now.
func (f *memberChoice) Build(info base.PickerBuildInfo) balancer.Picker {
	if len(info.ReadySCs) == 0 {
		return base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	}
	p := &stickyPicker{choice: f, ready: make(map[string]balancer.SubConn, len(info.ReadySCs))}
	for sc, i := range info.ReadySCs {
		p.ready[i.Address.Addr] = sc
		p.order = append(p.order, i.Address.Addr)
	}
	rand.Shuffle(len(p.order), func(i, j int) { p.order[i], p.order[j] = p.order[j], p.order[i] })
	return p
}

// choose returns the preferred member. If that is not connected, it prefers the connected member
// that was silent longest ago, or never.
func (f *memberChoice) choose(order []string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(order, f.preferred) {
		f.preferred = slices.MinFunc(order, func(a, b string) int { return f.silent[a] - f.silent[b] })
	}
	return f.preferred
}

// blame records that a member did not answer, or was unavailable.
func (f *memberChoice) blame(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count++
	f.silent[address] = f.count
	if f.preferred == address {
		f.preferred = "" // with one member it is chosen again
	}
}

type stickyPicker struct {
	choice *memberChoice
	ready  map[string]balancer.SubConn // never empty
	order  []string                    // its keys
}

// Pick chooses the member for one call.
func (p *stickyPicker) Pick(balancer.PickInfo) (balancer.PickResult, error) {
	address, start := p.choice.choose(p.order), time.Now()
	return balancer.PickResult{SubConn: p.ready[address], Done: func(d balancer.DoneInfo) {
		if d.Err != nil && unanswered(d.Err, time.Since(start)) {
			p.choice.blame(address)
		}
	}}, nil
}

// unanswered reports whether the error of a call counts against its member: no answer in time, a
// broken connection, or no leader. A refusal is an answer.
func unanswered(err error, waited time.Duration) bool {
	switch code := status.Code(err); {
	case code == codes.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded):
		return waited >= shortest
	default:
		return code == codes.Unavailable
	}
}
