package keylimit

import "time"

// Want has the properties of a request that determine its use.
type Want struct {
	Bytes     int   // of the body without media; 0 without a prompt for the engines
	MaxTokens int64 // of the answer; 0: unknown
	Generates bool  // the answer has tokens
}

// Ticket is the reservation of one request. The zero Ticket has none.
type Ticket struct {
	k     *key
	want  Want
	est   Amounts
	limit Amounts // limits when est was taken
	start time.Time
}

// Refusal names the limit that a request would exceed.
type Refusal struct {
	Kind  Kind
	Limit int64         // of all proxies
	Wait  time.Duration // time until the request will probably fit: 1 s to 1 min
}

// Standing is the state of one limit, for the headers of an answer. Limit is 0 if there is none.
type Standing struct {
	Limit     int64         // of all proxies
	Remaining int64         // amount that this proxy would admit now
	Reset     time.Duration // time until this proxy's share is unused
}

const maxWait = time.Minute

// Reserve takes the probable use of a request of a key. If that is above a limit, it takes nothing and
// returns a Refusal: the request must not be served. Otherwise the caller must call Ticket.End.
func (t *Table) Reserve(name string, w Want) (Ticket, *Refusal) {
	k := t.keys()[name]
	if k == nil {
		return Ticket{}, nil
	}
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	ticket := Ticket{k: k, want: w, start: now, est: k.estimate(w), limit: k.limit}
	for kind := range Concurrent {
		k.demand[kind].add(ticket.est[kind], now)
	}
	var over *Refusal
	refuse := func(kind Kind, wait float64) {
		d := min(max(time.Duration(wait*float64(time.Second)), time.Second), maxWait)
		if over == nil || d > over.Wait {
			over = &Refusal{Kind: kind, Limit: int64(k.limit[kind]), Wait: d}
		}
	}
	for kind := range Concurrent {
		b := &k.buckets[kind]
		if k.limit[kind] == 0 || ticket.est[kind] == 0 {
			continue
		}
		b.advance(now)
		if lack := b.missing(ticket.est[kind]); lack > 0 {
			refuse(kind, k.until(kind, lack))
		}
	}
	if k.limit[Concurrent] > 0 && k.inFlight >= k.cap {
		refuse(Concurrent, k.seconds/float64(k.cap))
	}
	if over != nil {
		t.use.refused(name, over.Kind)
		return Ticket{k: k}, over
	}
	for kind := range Concurrent {
		if k.limit[kind] > 0 {
			k.buckets[kind].take(ticket.est[kind])
		}
	}
	k.inFlight++
	return ticket, nil
}

// until returns the seconds until a bucket has n more. A small share grows within a second, once its demand
// is published. The caller holds mu.
func (k *key) until(kind Kind, n float64) float64 {
	return n / max(k.buckets[kind].rate, k.limit[kind]/60/k.proxies)
}

// estimate returns the probable use of a request. The caller holds mu.
func (k *key) estimate(w Want) Amounts {
	est := Amounts{Requests: 1}
	if w.Bytes > 0 {
		est[Input] = max(1, float64(w.Bytes)*k.perByte)
		est[Uncached] = est[Input] * k.uncached
	}
	if w.Generates {
		est[Output] = k.output
		if w.MaxTokens > 0 {
			est[Output] = min(est[Output], float64(w.MaxTokens))
		}
	}
	return est
}

// Limited reports whether the request's key has limits.
func (t *Ticket) Limited() bool { return t.k != nil }

// Standings returns the state of the limit on requests, and of the tightest limit on tokens.
func (t *Ticket) Standings() (requests, tokens Standing) {
	k, now := t.k, time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	tightest := 2.0
	for kind := range Concurrent {
		b := &k.buckets[kind]
		if k.limit[kind] == 0 {
			continue
		}
		b.advance(now)
		s := Standing{Limit: int64(k.limit[kind]), Remaining: int64(max(0, b.balance))}
		s.Reset = time.Duration(min(k.until(kind, b.burst-b.balance), time.Hour.Seconds()) * float64(time.Second))
		if kind == Requests {
			requests = s
		} else if part := b.balance / b.burst; part < tightest {
			tightest, tokens = part, s
		}
	}
	return requests, tokens
}

// Usage is the use of a request, as far as engines reported it.
type Usage struct {
	Input, Cached, Output int
	// Served is false for a request that no engine computed.
	Served bool
}

// End settles the reservation. Only the first call has an effect, and none with the zero Ticket.
func (t *Ticket) End(u Usage) {
	k := t.k
	if k == nil {
		return
	}
	t.k = nil
	now := time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inFlight--
	used := Amounts{Input: float64(u.Input), Uncached: float64(max(0, u.Input-u.Cached)), Output: float64(u.Output)}
	if u.Served && u.Input == 0 { // not reported: keep the estimate
		used[Input], used[Uncached] = t.est[Input], t.est[Uncached]
		if u.Output == 0 {
			used[Output] = t.est[Output]
		}
	}
	for kind := Input; kind < Concurrent; kind++ {
		if k.limit[kind] > 0 && t.limit[kind] > 0 {
			k.buckets[kind].advance(now)
			k.buckets[kind].take(used[kind] - t.est[kind])
		}
	}
	k.learn(t.want, u, now.Sub(t.start))
}

// learn updates the average use of a request of the key. The caller holds mu.
func (k *key) learn(w Want, u Usage, took time.Duration) {
	toward := func(mean *float64, x float64) { *mean += (x - *mean) * learnPart }
	toward(&k.seconds, took.Seconds())
	if u.Input > 0 && w.Bytes > 0 {
		toward(&k.perByte, float64(u.Input)/float64(w.Bytes))
		toward(&k.uncached, float64(max(0, u.Input-u.Cached))/float64(u.Input))
	}
	if u.Output > 0 && w.Generates {
		toward(&k.output, float64(u.Output))
	}
}
