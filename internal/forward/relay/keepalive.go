package relay

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// The keep-alives of vLLM (--sse-keep-alive-interval) and of Anthropic's API.
const (
	keepAliveComment = ": keep-alive\n\n"
	keepAlivePing    = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
)

// keepAlive sends a keep-alive to the client of a stream after each interval without a write. Its timer
// runs while the answer's goroutine waits for an engine or for a pick. Both write to the client only while
// they hold mu, and only whole events, so that neither splits an event of the other. The zero value is off.
type keepAlive struct {
	interval time.Duration // 0: off; it does not change while the timer runs

	mu      sync.Mutex // guards the fields below, and the client's connection while the timer runs
	timer   *time.Timer
	last    time.Time // of the last write
	header  bool      // status and header were sent
	begun   bool      // a keep-alive has sent them
	relayed bool      // events of an engine were sent
	ended   bool      // the timer writes nothing more
	sent    int       // number of the proxy's comments and pings
}

// StartKeepAlive begins to keep the client's connection alive, if the interval is positive. The answer
// must be a stream of a kind that generates. From now on the client's header map belongs to the Answer.
func (a *Answer) StartKeepAlive(interval time.Duration) {
	k := &a.keep
	if interval <= 0 {
		return
	}
	k.interval, k.last = interval, time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(interval, a.keepAlive)
}

// StopKeepAlive ends the keep-alives. When it has returned, only the caller writes to the
// client. It must be called before the request ends; it may be called more than once.
func (a *Answer) StopKeepAlive() {
	k := &a.keep
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended = true; k.timer != nil {
		k.timer.Stop()
	}
}

// KeepAlives returns the number of comments and pings that the proxy has sent on its own.
// Call it only after StopKeepAlive.
func (a *Answer) KeepAlives() int { return a.keep.sent }

// keepAlive runs when the timer fires.
func (a *Answer) keepAlive() {
	k := &a.keep
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended {
		return
	}
	if idle := time.Since(k.last); idle < k.interval {
		k.timer.Reset(k.interval - idle)
		return
	}
	text := keepAliveComment
	if k.relayed && a.Kind == openai.Messages {
		text = keepAlivePing
	}
	if !a.sendKeepAlive([]byte(text)) {
		k.ended = true // the answer's goroutine notices by itself that the client has left
		return
	}
	k.sent++
	k.timer.Reset(k.interval)
}

// passKeepAlive sends an engine's own comment or ping to a client whose answer is not committed yet. A ping
// becomes a comment: no event may precede message_start.
func (a *Answer) passKeepAlive(event []byte) {
	if a.Kind == openai.Messages {
		event = []byte(keepAliveComment)
	}
	a.keep.mu.Lock()
	defer a.keep.mu.Unlock()
	a.sendKeepAlive(event)
}

// sendKeepAlive sends status and header, unless they were sent, and then text. The caller holds
// keep.mu. The header is that of a vLLM stream; the instances are not known yet, see reasons.
func (a *Answer) sendKeepAlive(text []byte) bool {
	k := &a.keep
	if !k.header {
		k.header, k.begun = true, true
		a.Client.Header()["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
		noBuffering(a.Client.Header())
		a.Client.WriteHeader(http.StatusOK)
	}
	_, ok := a.writeLocked(text)
	a.Client.Flush()
	return ok
}

// beginsWhole prepares a non-streamed answer. It returns false if that cannot be sent any
// more, because the header of a stream was sent.
func (a *Answer) beginsWhole() bool {
	k := &a.keep
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.begun {
		return false
	}
	if k.ended = true; k.timer != nil {
		k.timer.Stop()
	}
	return true
}

// reasons returns a comment with the fields that the proxy would have added to the answer's header if
// a keep-alive had not sent it; nil if there are none. more has names and values of further fields.
func (a *Answer) reasons(more ...string) []byte {
	h := http.Header{}
	if a.Route != nil {
		a.Route.Header(h)
	}
	for i := 0; i+1 < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	if len(h) == 0 {
		return nil
	}
	lines := make([]string, 0, len(h))
	for name, values := range h {
		lines = append(lines, ": "+name+": "+strings.Map(printable, strings.Join(values, ", "))+"\n")
	}
	slices.Sort(lines)
	return []byte(strings.Join(lines, "") + "\n")
}

// printable replaces a character that would end a line.
func printable(r rune) rune {
	if r < ' ' {
		return ' '
	}
	return r
}

// failInStream sends an error to a client that has the header of a stream: a comment with the missing
// header fields, then an error event, without a clean end. The keep-alives have been stopped.
func (a *Answer) failInStream(status int, event []byte, more ...string) {
	a.Log.WithField("request_id", a.ID).WithField("status", status).WithField("outcome", a.Outcome).
		Info("error sent as an event, because the header had been sent for a keep-alive")
	a.Status, a.Late = http.StatusOK, status
	if a.write(append(a.reasons(more...), event...)) {
		a.Broken = true
	}
}
