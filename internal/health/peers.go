package health

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

const (
	// maxPeers is the largest number of peers that are probed at once for one silent instance.
	maxPeers = 3
	// peerFactor multiplies the time of the peers' quickest answer; the product is the least limit.
	peerFactor = 4
	// prefillLimit is the least limit for the last prefill instance if decode instances are its
	// peers: they can do its work, but not as fast.
	prefillLimit = 5 * time.Second
)

// peers are the instances with which a silenceWatch compares its own: those that could take its
// requests. A few of them are probed in each round.
type peers struct {
	t  *Tracker
	of *instance.Instance

	probed     map[instance.Key]uint64 // peers of the last round, with Options.Received at that time
	probedAt   time.Time               // start of the last round
	least      time.Duration           // the least limit with these peers
	pending    int                     // probes that have not ended
	answers    chan peerAnswer
	quickest   time.Duration // the time of the quickest answer in the slowest round, 0 for none
	lastAnswer time.Time     // when a peer last answered a probe or a request
}

type peerAnswer struct {
	took time.Duration
	err  error
}

// probe probes some of the peers.
func (p *peers) probe(now time.Time) {
	list, least := p.sample()
	p.least, p.probedAt = least, now
	clear(p.probed)
	for _, peer := range list {
		p.probed[peer.Key] = p.t.opts.Received(peer.Key)
		p.pending++
		p.t.work.Go(func() {
			err := p.t.probe(peer)
			p.answers <- peerAnswer{time.Since(now), err}
		})
	}
}

// answered handles the end of a probe. Among peers that were probed together, the first answer is
// the quickest.
func (p *peers) answered(a peerAnswer, now time.Time) {
	p.pending--
	if a.err != nil {
		return
	}
	if p.lastAnswer.Before(p.probedAt) || p.quickest == 0 {
		p.quickest = max(p.quickest, a.took, 1)
	}
	p.lastAnswer = now
}

// observe counts bytes of answers that were received from a peer like an answered probe.
func (p *peers) observe(now time.Time) {
	for k, before := range p.probed {
		if received := p.t.opts.Received(k); received != before {
			p.probed[k], p.lastAnswer = received, now
			p.quickest = max(p.quickest, 1)
		}
	}
}

// sample returns some instances that could take the requests of this one, at most maxPeers, and
// the least limit with them as peers.
func (p *peers) sample() (list []*instance.Instance, least time.Duration) {
	snap, models := p.t.opts.Source.Snapshot(), p.of.Record.Models
	available := func(role instance.Role) []*instance.Instance {
		var out []*instance.Instance
		for _, in := range snap.Usable(role) {
			serves := func(model string) bool { return in.ServesModel(model) && !p.t.Failing(in.Key, model) }
			if in.Address != p.of.Address && p.t.Available(in.Key) && (len(models) == 0 || slices.ContainsFunc(models, serves)) {
				out = append(out, in)
			}
		}
		rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		return out[:min(len(out), maxPeers)]
	}
	if list = available(p.of.Role); len(list) > 0 {
		return list, 0
	}
	if p.of.Role == instance.Prefill && p.t.opts.PrefillOptional {
		return available(instance.Decode), prefillLimit
	}
	return nil, 0
}
