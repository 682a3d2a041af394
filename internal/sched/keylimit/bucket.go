package keylimit

import (
	"math"
	"time"
)

// bucket is a token bucket whose balance may be negative. golang.org/x/time/rate has whole bursts,
// refuses more than a burst at once, and takes nothing back; a reservation of tokens is often
// larger than the burst of a second, and is corrected when the request ends.
type bucket struct {
	rate    float64 // per second
	burst   float64
	balance float64 // at most burst
	busy    bool    // the demand is sustained
	at      time.Time
	taken   meanRate
	granted float64   // what all proxies should have admitted per minute, on average like taken
	shared  time.Time // of the last call of set
}

// fleet is a limit and its use per minute at all proxies: the demand, the part of it of proxies that
// report what they have admitted, and what these have.
type fleet struct{ limit, demand, reported, taken float64 }

const (
	// exceed is the part of a share by which a minute may exceed it, if the limit is at least
	// largeLimit; of smaller limits it is 1 for each proxy.
	exceed     = 0.025
	largeLimit = 600
	// busyPart is the part of a limit from which demand counts as sustained. The mean demand of a client
	// that begins needs some time to reach it.
	busyPart = 0.6
	// A share grows by catchUp times the part of the limit that was not used, at most by maxCatchUp, and
	// decreases in the same way. Both were tuned with TestFleet.
	catchUp, maxCatchUp = 4, 0.2
)

// set changes the share per minute of a limit. In every minute, a bucket admits at most the share
// and what it may be exceeded by, if what is taken at once is not larger than the burst. A larger
// burst loses less of arrivals at random, but for that bound it needs a lower rate. While the demand
// of all proxies is sustained, large limits have the larger burst and the whole rate: a minute of one
// proxy varies more then, but hardly the sum of all, whose deviation changes the rate of each.
func (b *bucket) set(share float64, all fleet, now time.Time) {
	more := 1.0
	if all.limit >= largeLimit {
		more = max(more, exceed*share)
	}
	fresh := b.at.IsZero()
	b.advance(now)
	b.burst = max(more, math.Sqrt(share)/2)
	b.rate = (share - 1.25*(b.burst-more)) / 60 // less than the bound, since shares vary
	if fresh {
		b.balance = b.burst
	}
	busy := all.limit >= largeLimit && all.demand >= busyPart*all.limit
	if busy && !b.busy {
		b.balance -= (b.burst - more) / 2 // or the first minute would exceed its limit
	}
	if b.busy = busy; busy {
		lag := min(b.granted, all.limit, all.demand)*all.reported/all.demand - all.taken
		b.burst = max(more, 1.25*math.Sqrt(share))
		b.rate = share / 60 * (1 + min(max(catchUp*lag/all.limit, -0.5), maxCatchUp))
		b.granted += (all.limit - b.granted) * (1 - math.Exp(-float64(now.Sub(b.shared))/float64(rateWindow)))
	} else {
		b.granted = all.taken
	}
	b.shared = now
	b.balance = min(b.balance, b.burst)
}

func (b *bucket) advance(now time.Time) {
	if d := now.Sub(b.at).Seconds(); d > 0 {
		b.balance = min(b.burst, b.balance+d*b.rate)
		b.at = now
	}
}

// missing returns what the balance lacks before n can be taken, 0 for nothing. More than a burst
// can be taken from a full bucket, which is then in debt.
func (b *bucket) missing(n float64) float64 { return max(0, min(n, b.burst)-b.balance) }

// take changes the balance; a negative n returns tokens.
func (b *bucket) take(n float64) {
	b.balance = min(b.burst, b.balance-n)
	b.taken.add(n, b.at)
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
