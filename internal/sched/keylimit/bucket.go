package keylimit

import (
	"math"
	"time"
)

// bucket is a token bucket whose balance may be negative. golang.org/x/time/rate does not suit: its bursts
// are integers, it refuses more than a burst at once, and it takes nothing back. A reservation of tokens is
// often larger than the burst of a second, and is corrected when the request ends.
type bucket struct {
	rate    float64 // per second
	burst   float64
	balance float64 // at most burst
	at      time.Time
	count   float64   // total of all that was taken
	credit  float64   // unused part of the limit, over all proxies; negative: the excess
	settled time.Time // when credit was last changed
}

// fleet is a limit per minute and its use at all proxies. unknown is the demand of proxies that do not report
// what they admit; admitted is the amount that the others have admitted since the last call.
type fleet struct{ limit, demand, unknown, admitted float64 }

const (
	// exceed is the part of a share by which a minute may exceed it, if the limit is at least largeLimit;
	// smaller limits may be exceeded by 1 for each proxy.
	exceed     = 0.025
	largeLimit = 600
	// busyPart is the part of a limit from which demand counts as sustained. The mean demand of a new client
	// takes some time to reach it.
	busyPart = 0.6
	// maxCredit and minCredit bound the credit, in parts of a limit. With more credit, the minute after a
	// pause exceeds the limit; with less, random arrivals use less of it.
	maxCredit, minCredit = 0.035, -0.25
	// The rate per minute increases by gain times the proxy's part of the credit. It decreases by ownGain
	// times the excess of its balance over a quarter of the burst, since that is part of the credit, too. The
	// change is at most maxChange of the share. The values were tuned with the fleets of TestFleet, which
	// publish once a second, and are stable if they do so every 3 s.
	gain, ownGain, maxChange = 20, 8, 0.5
	// staleCredit is the time without new digests after which the credit has no effect.
	staleCredit = 5 * time.Second
)

// set changes the share per minute of a limit. In every minute, a bucket admits at most the share plus its
// allowed excess, unless more than the burst is taken at once. A larger burst refuses fewer random arrivals,
// but needs a lower rate to keep this bound. While the demand of all proxies for a large limit is sustained,
// the rate follows the credit instead. The credit is the balance of one bucket for all proxies, about a
// second ago.
func (b *bucket) set(share float64, all fleet, now time.Time) {
	more, busy := 1.0, false
	if all.limit >= largeLimit {
		more, busy = max(more, exceed*share), all.demand >= busyPart*all.limit
	}
	fresh := b.at.IsZero()
	b.advance(now)
	b.burst = max(more, math.Sqrt(share)/2)
	if fresh {
		b.balance, b.settled = b.burst, now
	}
	most := 0.0 // without demand, unused requests earn no credit
	if busy {
		most = maxCredit * all.limit
	}
	if !busy || all.admitted != 0 { // otherwise, there are no new digests
		known := all.limit - all.unknown*min(1, all.limit/all.demand)
		b.credit += known*now.Sub(b.settled).Minutes() - all.admitted
		b.credit = min(max(b.credit, minCredit*all.limit), most)
		b.settled = now
	}
	if busy {
		b.burst = max(more, 0.7*math.Sqrt(share))
		change := gain*share*b.credit/all.limit - ownGain*(b.balance-b.burst/4)
		if now.Sub(b.settled) > staleCredit {
			change = 0
		}
		b.rate = (share + min(max(change, -maxChange*share), maxChange*share)) / 60
	} else {
		b.rate = (share - 1.4*(b.burst-more)) / 60 // less than the bound, since shares vary
	}
	b.balance = min(b.balance, b.burst)
}

func (b *bucket) advance(now time.Time) {
	if d := now.Sub(b.at).Seconds(); d > 0 {
		b.balance = min(b.burst, b.balance+d*b.rate)
		b.at = now
	}
}

// missing returns the amount that the balance lacks before n can be taken, 0 if none. More than a burst can
// be taken from a full bucket; its balance is then negative.
func (b *bucket) missing(n float64) float64 { return max(0, min(n, b.burst)-b.balance) }

// take changes the balance; a negative n returns tokens.
func (b *bucket) take(n float64) {
	b.balance = min(b.burst, b.balance-n)
	b.count += n
}

// meanRate is an exponentially weighted rate per minute, with a time constant of 20 s.
type meanRate struct {
	sum float64
	at  time.Time
}

const rateWindow = 20 * time.Second

func (r *meanRate) add(n float64, now time.Time) {
	r.sum, r.at = r.perMinute(now)/60*rateWindow.Seconds()+n, now
}

func (r *meanRate) perMinute(now time.Time) float64 {
	return r.sum * math.Exp(-float64(now.Sub(r.at))/float64(rateWindow)) * 60 / rateWindow.Seconds()
}

// Share returns the part of a limit that proxy i may use. demands has the demand of every proxy in the unit
// of the limit, in the same order in all proxies. Above the limit, shares are proportional to demand. Below
// it, each proxy gets its demand and an equal part of the rest, for requests that arrive before the next
// exchange. The shares of all proxies sum to the limit.
func Share(limit float64, demands []float64, i int) float64 {
	sum := 0.0
	for _, d := range demands {
		sum += d
	}
	if sum >= limit {
		return limit * demands[i] / sum
	}
	return demands[i] + (limit-sum)/float64(len(demands))
}

// wholeShare returns Share for a limit of whole units: shares are rounded so that they sum to the limit,
// except that none is below 1.
func wholeShare(limit float64, demands []float64, i int) int64 {
	before := 0.0
	for j := range i {
		before += Share(limit, demands, j)
	}
	// The sum of floats may be just below a whole number.
	const tiny = 1e-6
	return max(1, int64(math.Floor(before+Share(limit, demands, i)+tiny))-int64(math.Floor(before+tiny)))
}
