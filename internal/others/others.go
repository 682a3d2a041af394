// Package others adds up what the other proxies say that they have in flight.
//
// A digest is worth less the older it is: one that tells of anything is written again
// every lease.RefreshLoad, so an old one is of a proxy that hangs or was stopped, or
// has not come because etcd cannot be reached.
package others

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/sched"
)

const (
	// fresh is up to which age a digest is worth all of what it says: one was missed
	// at most.
	fresh = 2*lease.RefreshLoad + time.Second
	// half is in which time it loses half of that afterwards.
	half = 3 * time.Second
	// least is what is worth nothing any more.
	least = 1.0 / 32
)

// Worth is what a digest of an age is worth, from 1 down to 0.
func Worth(age time.Duration) float64 {
	if age <= fresh {
		return 1
	}
	worth := math.Exp2(-float64(age-fresh) / float64(half))
	if worth < least {
		return 0
	}
	return worth
}

// Any reports whether another proxy chooses among the same instances. The digest of one
// that has nothing in flight is not written again, and counts until its lease ends.
func Any(all []*lease.ProxyLoad, own string, now time.Time) bool {
	return slices.ContainsFunc(all, func(p *lease.ProxyLoad) bool {
		return p.ID != own && p.Ignored == "" && (len(p.Load) == 0 || Worth(now.Sub(p.Heard)) > 0)
	})
}

// Sum adds up all digests but this proxy's own, by address. An engine that is in
// both roles is told of in either, with one count.
func Sum(all []*lease.ProxyLoad, own string, now time.Time) map[string]sched.Counts {
	sums := map[string]sched.Counts{}
	for _, p := range all {
		worth := Worth(now.Sub(p.Heard))
		if p.ID == own || p.Ignored != "" || worth == 0 {
			continue
		}
		for key, c := range p.Load {
			role, address, _ := strings.Cut(key, "/")
			if role == "prefill" {
				if _, both := p.Load["decode/"+address]; both {
					continue
				}
			}
			s := sums[address]
			s.InFlight += worth * float64(c.InFlight)
			s.Waiting += worth * float64(c.Waiting)
			s.Held += worth * float64(c.Held)
			sums[address] = s
		}
	}
	return sums
}

// Seen remembers which digests were looked at. Its zero value has seen none.
type Seen struct {
	last map[string]*lease.ProxyLoad
}

// News returns the digests of other proxies that can be used and were not given before. One
// that was written and overwritten between two calls is missed.
func (s *Seen) News(all []*lease.ProxyLoad, own string) []*lease.ProxyLoad {
	var news []*lease.ProxyLoad
	last := make(map[string]*lease.ProxyLoad, len(all))
	for _, p := range all {
		last[p.ID] = p
		if p.ID != own && p.Ignored == "" && s.last[p.ID] != p {
			news = append(news, p)
		}
	}
	s.last = last
	return news
}
