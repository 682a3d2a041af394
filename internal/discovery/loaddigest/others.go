package loaddigest

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// fresh is the age up to which a digest has its full weight: at most one was missed.
	fresh = 2*Refresh + time.Second
	// halfLife is the time in which an older digest loses half of its weight.
	halfLife = 3 * time.Second
	// leastWeight is the weight below which a digest is ignored.
	leastWeight = 1.0 / 32
)

// Weight returns the weight of a digest of an age, from 1 down to 0.
func Weight(age time.Duration) float64 {
	if age <= fresh {
		return 1
	}
	weight := math.Exp2(-float64(age-fresh) / float64(halfLife))
	if weight < leastWeight {
		return 0
	}
	return weight
}

// Others is the load of all proxies but this one.
type Others struct {
	// Counts has the weighted sum of their digests, by address.
	Counts map[string]instance.OthersLoad
	// Present reports whether another proxy picks among the same instances.
	Present bool
	// New has the usable digests that were not in a previous Others. Digests that were overwritten
	// in between are missed.
	New []*ProxyLoad
	// Keys has the weighted demand of API keys at every proxy, by ID, including this one.
	Keys map[string]map[string][]int64
	// All has the last digest of every proxy, including this one.
	All []*ProxyLoad
}

// minPause and maxPause bound the time for which FollowOthers collects further changes. Each of a
// thousand proxies changes its digest once a second; adding them up must take at most a tenth of
// one core.
const (
	minPause = 10 * time.Millisecond
	maxPause = time.Second / 2
)

// FollowOthers calls f with the load of all proxies but own when a digest has changed, and once a
// second because weights decrease with time, until ctx ends.
func (w *Watcher) FollowOthers(ctx context.Context, own string, f func(Others)) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last seen
	for {
		start := time.Now()
		changed := w.Changed()
		all := w.All()
		f(Others{Counts: sum(all, own, start), Present: present(all, own, start), New: last.update(all, own), All: all, Keys: keys(all, own, start)})
		pause := min(max(minPause, 10*time.Since(start)), maxPause)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-changed:
			if !sleep.For(ctx, pause) {
				return
			}
		}
	}
}

// present reports whether a proxy other than own picks among the same instances. A proxy with
// nothing in flight does not refresh its digest, which counts until its lease ends.
func present(all []*ProxyLoad, own string, now time.Time) bool {
	return slices.ContainsFunc(all, func(p *ProxyLoad) bool {
		return p.ID != own && p.Ignored == "" && (len(p.Load) == 0 || Weight(now.Sub(p.ReceivedAt)) > 0)
	})
}

// keys returns the demand of API keys. Old digests lose weight only while this proxy's digest is
// fresh, which proves that etcd is reachable. Otherwise, shares stay as they are.
func keys(all []*ProxyLoad, own string, now time.Time) map[string]map[string][]int64 {
	out := make(map[string]map[string][]int64, len(all))
	reachable := slices.ContainsFunc(all, func(p *ProxyLoad) bool { return p.ID == own && Weight(now.Sub(p.ReceivedAt)) == 1 })
	for _, p := range all {
		if p.Ignored != "" {
			continue
		}
		out[p.ID] = p.Keys
		if weight := Weight(now.Sub(p.ReceivedAt)); reachable && weight < 1 {
			out[p.ID] = make(map[string][]int64, len(p.Keys))
			for key, demand := range p.Keys {
				out[p.ID][key] = slices.Clone(demand)
				for i, n := range demand[:min(schema.KeyRates, len(demand))] {
					out[p.ID][key][i] = int64(weight * float64(n))
				}
			}
		}
	}
	return out
}

// Engines iterates over the load by the address of the engine. A digest lists an engine of both
// roles under each, with the same count; under a role that it leaves, only while requests run
// there.
func (p *ProxyLoad) Engines(yield func(address string, c schema.LoadCount) bool) {
	for key, c := range p.Load {
		role, address, _ := strings.Cut(key, "/")
		if role == "prefill" {
			if _, both := p.Load["decode/"+address]; both {
				continue
			}
		}
		if !yield(address, c) {
			return
		}
	}
}

// sum adds up the digests of all proxies but own, by address.
func sum(all []*ProxyLoad, own string, now time.Time) map[string]instance.OthersLoad {
	sums := map[string]instance.OthersLoad{}
	for _, p := range all {
		weight := Weight(now.Sub(p.ReceivedAt))
		if p.ID == own || p.Ignored != "" || weight == 0 {
			continue
		}
		for address, c := range p.Engines {
			s := sums[address]
			s.InFlight += weight * float64(c.InFlight)
			s.Waiting += weight * float64(c.Waiting)
			s.Held += weight * float64(c.Held)
			sums[address] = s
		}
	}
	return sums
}

// seen has the digests of the last update, by proxy.
type seen map[string]*ProxyLoad

// update returns the usable digests of other proxies that are new since the last call.
func (s *seen) update(all []*ProxyLoad, own string) []*ProxyLoad {
	var unseen []*ProxyLoad
	last := make(seen, len(all))
	for _, p := range all {
		last[p.ID] = p
		if p.ID != own && p.Ignored == "" && (*s)[p.ID] != p {
			unseen = append(unseen, p)
		}
	}
	*s = last
	return unseen
}
