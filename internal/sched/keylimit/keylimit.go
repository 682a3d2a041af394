// Package keylimit applies the limits of API keys. A limit holds for all proxies together: each uses its
// Share, which follows the demand that proxies publish in their load digests. A request reserves its probable
// use when it arrives, and the difference is settled when it ends.
package keylimit

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Kind is the quantity that a limit counts.
type Kind int

// The kinds. All but Concurrent are per minute.
const (
	Requests Kind = iota
	Input
	Output
	Uncached
	Concurrent
	kinds
)

func (k Kind) String() string {
	return [kinds]string{"requests", "input_tokens", "output_tokens", "uncached_tokens", "concurrent"}[k]
}

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Requests, Input, Output, Uncached, Concurrent} }

// Amounts has a number of each kind.
type Amounts [kinds]float64

func amountsOf(l instance.KeyLimits) Amounts {
	return Amounts{float64(l.Requests), float64(l.Input), float64(l.Output), float64(l.Uncached), float64(l.Concurrent)}
}

// Table holds the limits and the use of all keys. The zero value has no limits. It is safe for
// concurrent use.
type Table struct {
	limited atomic.Pointer[map[string]*key] // keys with limits; nil: none
	use     uses

	mu    sync.Mutex           // serializes Set and SetDemands
	own   string               // this proxy; guarded by mu
	peers map[string]Published // guarded by mu
}

// Published has the numbers that a proxy publishes by key, see [Table.Publish]. Proxies of older versions
// publish no counts, and are assumed to admit their shares.
type Published = map[string][]int64

// key is one key with limits.
type key struct {
	limits instance.KeyLimits

	mu       sync.Mutex // guards the fields below
	limit    Amounts    // of all proxies; 0: none
	buckets  [Concurrent]bucket
	cap      int64 // requests at the same time
	proxies  float64
	inFlight int64
	demand   [Concurrent]meanRate // of arrivals, including refused ones
	// Average use of a request of the key; see learn.
	perByte, uncached, output, seconds float64
}

const (
	initialPerByte = 0.25 // tokens of a prompt per byte of a body
	initialOutput  = 256  // tokens of an answer without max_tokens
	initialSeconds = 1
	learnPart      = 1.0 / 16
)

// Set replaces the limits. A key keeps its use and its estimates.
func (t *Table) Set(limits map[string]instance.KeyLimits) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(limits) == 0 {
		t.limited.Store(nil)
		return
	}
	last, next := t.keys(), make(map[string]*key, len(limits))
	for name := range limits {
		k := last[name]
		if k == nil {
			k = &key{perByte: initialPerByte, uncached: 1, output: initialOutput, seconds: initialSeconds}
		}
		next[name] = k
	}
	t.share(next, limits, t.peers)
	t.limited.Store(&next)
}

func (t *Table) keys() map[string]*key {
	if p := t.limited.Load(); p != nil {
		return *p
	}
	return nil
}

// Limited reports whether any key has limits.
func (t *Table) Limited() bool { return t.limited.Load() != nil }

// SetDemands updates the shares of this proxy, whose id is own, from the demands of all proxies, including
// its own. A proxy without demand is in the map, too.
func (t *Table) SetDemands(own string, demands map[string]Published) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.peers
	t.own, t.peers = own, demands
	t.share(t.keys(), nil, last)
}

// share computes the shares of keys; last is the former value of peers. The caller holds mu.
func (t *Table) share(keys map[string]*key, limits map[string]instance.KeyLimits, last map[string]Published) {
	now := time.Now()
	// All proxies add and round in the same order.
	ids := slices.Sorted(maps.Keys(t.peers))
	for name, k := range keys {
		demands, at := make([]Amounts, len(ids), len(ids)+1), -1
		var unknown, admitted Amounts
		for i, id := range ids {
			list := t.peers[id][name]
			for kind := range min(kinds, Kind(len(list))) {
				demands[i][kind] = max(0, float64(list[kind]))
				if n, ok := admittedSince(last[id][name], list, kind); ok {
					admitted[kind] += n
				} else {
					unknown[kind] += demands[i][kind]
				}
			}
			if id == t.own && len(list) > 0 {
				at = i
			}
		}
		k.mu.Lock()
		if l, ok := limits[name]; ok {
			k.limits, k.limit = l, amountsOf(l)
		}
		if at < 0 { // its last digest, if any, does not have this key
			own := k.demands(now)
			if k.matters(own) {
				clear(demands) // all digests may be full: use equal shares
			}
			if at = slices.Index(ids, t.own); at < 0 {
				at, demands = len(demands), append(demands, own)
			} else {
				demands[at] = own
			}
		}
		k.setShares(demands, at, unknown, admitted, now)
		k.mu.Unlock()
	}
}

// setShares sets the shares from the demands of all proxies. unknown is the demand of those that do not
// report what they admit; admitted is the amount that the others have admitted. The caller holds mu.
func (k *key) setShares(demands []Amounts, at int, unknown, admitted Amounts, now time.Time) {
	k.proxies = float64(len(demands))
	of := make([]float64, len(demands))
	for kind := range kinds {
		if k.limit[kind] == 0 {
			continue
		}
		sum := 0.0
		for i := range demands {
			of[i] = demands[i][kind]
			sum += of[i]
		}
		if kind == Concurrent {
			k.cap = wholeShare(k.limit[kind], of, at)
		} else {
			k.buckets[kind].set(Share(k.limit[kind], of, at), fleet{k.limit[kind], sum, unknown[kind], admitted[kind]}, now)
		}
	}
}

// demands returns the demand of this proxy. The caller holds mu.
func (k *key) demands(now time.Time) (d Amounts) {
	for kind := range Concurrent {
		d[kind] = k.demand[kind].perMinute(now)
	}
	d[Concurrent] = max(float64(k.inFlight), d[Requests]/60*k.seconds)
	return d
}

// leastDemand is the part of a limit below which a demand is not published.
const leastDemand = 0.005

// matters reports whether a demand is published. The caller holds mu.
func (k *key) matters(d Amounts) bool {
	for kind, limit := range k.limit {
		if limit > 0 && d[kind] >= leastDemand*limit {
			return true
		}
	}
	return false
}

// countBits is the size of a published count, which wraps to 0. Digests have numbers up to 2^40.
const countBits = 40

// admittedSince returns the amount that a proxy has admitted between two lists; false if list does not report
// it. An impossible amount counts as 0, for example if before is missing because a digest had expired.
func admittedSince(before, list []int64, kind Kind) (float64, bool) {
	at := int(kinds + Concurrent + kind)
	if at >= len(list) {
		return 0, false
	}
	n := list[at]
	if at < len(before) {
		n -= before[at]
	}
	by := float64(n << (64 - countBits) >> (64 - countBits))
	if math.Abs(by) > float64(list[kind])/2 { // more than the demand of 30 s
		by = 0
	}
	return by, true
}

// Publish returns the numbers for the load digest of this proxy: its demand, the rate per minute at which it
// admits (for proxies of older versions), and the counts of what it has admitted.
func (t *Table) Publish() Published {
	out, now := Published{}, time.Now()
	for name, k := range t.keys() {
		k.mu.Lock()
		if d := k.demands(now); k.matters(d) {
			list := make([]int64, kinds+2*Concurrent)
			for i := range d {
				list[i] = int64(d[i] + 0.5)
			}
			for kind := range Concurrent {
				b := &k.buckets[kind]
				list[kinds+kind] = int64(min(d[kind], 60*max(0, b.rate)) + 0.5)
				list[kinds+Concurrent+kind] = int64(b.count) & (1<<countBits - 1)
			}
			out[name] = list
		}
		k.mu.Unlock()
	}
	return out
}
