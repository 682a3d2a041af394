package engine

import (
	"sync"
	"time"
)

// pacer writes the tokens of all paced answers. As every answer has the same
// time between tokens, the next one due is always at the head of one queue:
// there is no timer per token, and none per answer.
type pacer struct {
	wake chan struct{} // capacity 1
	quit chan struct{}

	mu    sync.Mutex // guards queue; never held while writing
	queue []*paced   // a ring, from head
	head  int
	count int
}

func newPacer() *pacer {
	return &pacer{wake: make(chan struct{}, 1), quit: make(chan struct{}), queue: make([]*paced, 64)}
}

func (p *pacer) stop() { close(p.quit) }

// add puts an answer at the end of the queue.
func (p *pacer) add(a *paced) {
	p.mu.Lock()
	if p.count == len(p.queue) {
		bigger := make([]*paced, 2*len(p.queue))
		for i := range p.count {
			bigger[i] = p.queue[(p.head+i)%len(p.queue)]
		}
		p.queue, p.head = bigger, 0
	}
	p.queue[(p.head+p.count)%len(p.queue)] = a
	p.count++
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// next takes the head off if it is due; else it says how long to wait, less
// than nothing for an empty queue.
func (p *pacer) next(now time.Time) (*paced, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == 0 {
		return nil, -1
	}
	a := p.queue[p.head]
	if wait := a.due.Sub(now); wait > 0 {
		return nil, wait
	}
	p.queue[p.head] = nil
	p.head = (p.head + 1) % len(p.queue)
	p.count--
	return a, 0
}

// putBack makes a the head again.
func (p *pacer) putBack(a *paced) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.head = (p.head + len(p.queue) - 1) % len(p.queue)
	p.queue[p.head] = a
	p.count++
}

// maxBurst is how many tokens are written without a pause.
const maxBurst = 64

func (p *pacer) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	now := time.Now()
	for burst := 0; ; {
		a, wait := p.next(now)
		switch {
		case a != nil && burst == maxBurst:
			// Step back for whatever reads: on one core the tokens would
			// otherwise bunch in the sockets.
			wait = 20 * time.Microsecond
			p.putBack(a)
		case a != nil:
			burst++
			if a.step(now) {
				p.add(a)
			}
			now = time.Now()
			continue
		case wait < 0:
			wait = time.Hour
		}
		burst = 0
		timer.Reset(wait)
		select {
		case <-p.quit:
			return
		case <-p.wake:
		case <-timer.C:
		}
		now = time.Now()
	}
}

// paced is the answer that a connection's pacer is writing, if any. There is
// one per connection, used again for each answer.
type paced struct {
	c     *conn
	due   time.Time // only the pacer's, while the answer is in its queue
	begun bool      // only the reader's: the answer may be active
	buf   []byte    // for the pieces that are more than an event
	piece piece

	mu     sync.Mutex // guards what follows; held while an event is written, which never blocks
	idle   sync.Cond
	active bool
	itl    time.Duration
	event  int
	rest   []byte // what the socket did not take of the event
}

func (a *paced) init(c *conn) {
	a.c = c
	a.idle.L = &a.mu
	a.piece.init()
}

// begin sends the head and hands the answer to the pacer.
func (a *paced) begin(itl time.Duration) error {
	a.begun = true
	a.mu.Lock()
	a.active, a.itl, a.event, a.rest = true, itl, 0, nil
	a.c.e.active.Add(1)
	// The first token is not waited for: the time to it is the proxy's.
	a.buf = append(a.buf[:0], streamHead...)
	a.buf = append(a.buf, a.c.stream.Chunk(0)...)
	a.load()
	a.due = time.Now()
	again := a.push()
	a.due = a.due.Add(itl)
	a.mu.Unlock()
	if again {
		a.c.e.pacer.add(a)
	}
	return nil
}

// step writes the next event; false ends the answer.
func (a *paced) step(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.active {
		return false
	}
	// Without drift, unless the machine is so late that tokens would bunch.
	if a.due = a.due.Add(a.itl); a.due.Before(now) {
		a.due = now.Add(a.itl)
	}
	if len(a.rest) == 0 {
		a.buf = a.buf[:0]
		a.load()
	}
	return a.push()
}

// load prepares the next token, behind what is in buf. The last one brings all
// that follows it.
func (a *paced) load() {
	s := a.c.stream
	a.event++
	if s.IsToken(a.event + 1) {
		if len(a.buf) == 0 {
			a.rest = s.Chunk(a.event)
			return
		}
		a.buf = append(a.buf, s.Chunk(a.event)...)
		a.rest = a.buf
		return
	}
	for n := s.Events(); a.event < n; a.event++ {
		a.buf = append(a.buf, s.Chunk(a.event)...)
	}
	a.buf = append(a.buf, endOfChunks...)
	a.rest = a.buf
}

// push writes what it can of rest without waiting, and says whether the answer
// goes on.
func (a *paced) push() bool {
	n, err := a.piece.send(a.c.nc.Sock(), a.rest)
	a.rest = a.rest[n:]
	switch {
	case err != nil:
		a.end()
		a.c.e.aborted()
		return false
	case len(a.rest) == 0 && a.event == a.c.stream.Events():
		a.end()
		return false
	}
	return true
}

func (a *paced) end() {
	a.active = false
	a.c.e.active.Add(-1)
	a.idle.Broadcast()
}

// readerLeft is told when the connection has ended.
func (a *paced) readerLeft() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.active {
		a.end()
		a.c.e.aborted()
	}
}

// await waits for the end of the answer under way.
func (a *paced) await() {
	if !a.begun {
		return
	}
	a.begun = false
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.active {
		a.idle.Wait()
	}
}
