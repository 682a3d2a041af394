package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/continuation"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/forward/stage"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
	"github.com/pdmesh/pdmesh/internal/sched"
)

const (
	// continueWithin bounds the time from the loss of a leg until another one continues its stream.
	continueWithin = 30 * time.Second
	// movesPerDecode is the number of streams that one proxy continues at the same time, per decode instance.
	movesPerDecode = 4
	// maxTriedMoves bounds the attempts of a stream to leave a draining instance; each sends a
	// request to an engine.
	maxTriedMoves = 16
	// movePause is the minimum time between two checks whether a stream may move.
	movePause = 100 * time.Millisecond
	// detokenizeLimit bounds one request for the text of token ids; detokenizePause is the
	// wait after a failed one.
	detokenizeLimit = 5 * time.Second
	detokenizePause = 200 * time.Millisecond
	// maxDetokenized bounds the answer with the text of token ids, in bytes.
	maxDetokenized = 16 << 20
)

// move is a stream's change from one leg to the next. The zero value means that its leg is not
// lost.
type move struct {
	lost    time.Time      // when the leg was lost; zero if another one continues the stream
	class   leg.Class      // failure of the leg
	how     string         // how the stream is continued, once that is known
	why     string         // why it is not continued
	end     func()         // ends the stream's turn in the pace
	queried []instance.Key // instances to query last: the one that lost the stream, and those that failed to detokenize
}

// bound cancels a leg that does not continue its stream in time. The caller calls stop when
// the leg is over. A leg that continues no stream has no such bound.
func (m *move) bound(l *leg.Leg) (stop func()) {
	if m.lost.IsZero() {
		return func() {}
	}
	ctx, stop := context.WithCancel(l)
	m.afterDeadline(ctx, func() { l.CallOff(&leg.LimitError{Limit: leg.ContinueLimit(continueWithin)}) })
	return stop
}

// afterDeadline calls f when continueWithin has passed since the loss, unless ctx ends before.
func (m *move) afterDeadline(ctx context.Context, f func()) {
	due := m.lost.Add(continueWithin)
	go func() {
		if sleep.Until(ctx, due) && sleep.Until(ctx, leg.Resumed(due)) {
			f()
		}
	}()
}

// endTurn ends the stream's turn, so that the next stream can be continued.
func (m *move) endTurn() {
	if m.end != nil {
		m.end()
		m.end = nil
	}
}

var _ relay.Continuation = (*completion)(nil)

// Pass implements relay.Continuation.
func (c *completion) Pass(events []byte) ([]byte, error) {
	out, err := c.progress.Pass(events)
	switch {
	case err != nil:
		c.s.Recorder.NotContinued(continuation.ReasonSeam)
		c.move.lost = time.Time{}
	case c.move.lost.IsZero():
	case len(out) > 0:
		c.continued()
	default: // the leg repeats text that the client has: other streams need not wait for that
		c.move.endTurn()
	}
	return out, err
}

// Continues implements relay.Continuation.
func (c *completion) Continues(f *leg.Failure) bool {
	why := c.progress.Refused()
	if why == "" && !f.Rule.Retry {
		why = continuation.ReasonRefused
	}
	if why != "" {
		c.s.Recorder.NotContinued(why)
		c.move.lost = time.Time{}
	}
	return why == ""
}

// MayMove implements relay.Continuation. If it returns true, the stream has a turn in the
// pace. It returns false while the stream waits for its first event after a move.
func (c *completion) MayMove(l *leg.Leg) bool {
	if c.req == nil || !c.move.lost.IsZero() || c.triedMoves >= maxTriedMoves || time.Since(c.askedMove) < movePause {
		return false
	}
	c.askedMove = time.Now()
	if c.move.end = c.s.pace.TryBegin(c.maxMoves); c.move.end == nil {
		return false
	}
	c.noteEngine(l.Instance, []instance.Key{l.Instance.Key})
	defer c.progress.NoteEngine(connector.TakesPromptIDs(l.Instance)) // when the leg fails, other instances may be left
	moves := c.canLeave(l.Instance)
	if moves {
		asked := false
		moves = c.progress.MayMove(func(ids []byte) (string, error) {
			asked = true
			return c.detokenize(ids)
		})
		if asked {
			c.triedMoves++
		}
	}
	if !moves {
		c.move.endTurn()
	}
	return moves
}

// canLeave reports whether another decode instance could continue the stream, and a prefill
// instance compute its prompt if required. It returns false if in is no longer drained.
func (c *completion) canLeave(in *instance.Instance) bool {
	if now, ok := c.s.Picker.Members().Lookup(in.Key); ok && now.MoveAfter == nil {
		return false
	}
	d := c.otherDecode([]instance.Key{in.Key})
	if d == nil {
		return false
	}
	defer d.Done()
	if c.req.Bypass != "" || c.s.Fallback && !c.s.needsPrefill(d) {
		return true
	}
	w := c.r.attempts.wanted
	w.Role, w.Tentative = instance.Prefill, true
	p, err := c.s.Picker.Pick(w)
	if err != nil {
		return false
	}
	p.Done()
	return true
}

// otherDecode picks an available decode instance that is not in tried, nil if there is
// none. The caller sends it no leg.
func (c *completion) otherDecode(tried []instance.Key) *sched.Assignment {
	w := c.r.attempts.wanted
	w.Role, w.Tentative, w.Tried = instance.Decode, true, tried
	d, err := c.s.Picker.Pick(w)
	if err == nil && d.Instance.Usable() && c.s.Health.Available(d.Instance.Key) {
		return d
	}
	d.Done()
	return nil
}

// noteEngine records whether a chat whose leg is on in can be continued from token ids: not
// if in ignores them, or if all other instances do, apart from those tried.
func (c *completion) noteEngine(in *instance.Instance, tried []instance.Key) {
	takes := connector.TakesPromptIDs(in)
	if old := ignorePromptIDs(c.s.Picker.Members()); takes && c.kind == openai.Chat && len(old) > 0 {
		newer, other := c.otherDecode(slices.Concat(tried, old)), c.otherDecode(tried)
		takes = newer != nil || other == nil
		newer.Done()
		other.Done()
	}
	c.progress.NoteEngine(takes)
}

// ignorePromptIDs returns the instances that do not compute a chat's prompt from token ids.
func ignorePromptIDs(members *instance.Snapshot) (keys []instance.Key) {
	for _, in := range members.All() {
		if !connector.TakesPromptIDs(in) {
			keys = append(keys, in.Key)
		}
	}
	return keys
}

// continued records that another leg continues the stream.
func (c *completion) continued() {
	m := &c.move
	pause := time.Since(m.lost)
	c.s.Recorder.Continued(m.class, m.how, pause)
	c.r.Route.Continued++
	c.s.Log.WithField("request_id", c.r.Origin.ID).WithField("how", m.how).WithField("failure", string(m.class)).
		WithField("decode", c.r.Route.Decode).WithField("pause_ms", pause.Milliseconds()).Info("stream continued on another leg")
	m.endTurn()
	*m = move{}
}

// endProgress counts a lost stream that was not continued, and releases the record of the stream.
func (c *completion) endProgress() {
	m := &c.move
	if !m.lost.IsZero() && c.r.Origin.Client.Err() == nil {
		why := continuation.ReasonFailed
		if time.Since(m.lost) >= continueWithin {
			why = continuation.ReasonDeadline
		}
		c.s.Recorder.NotContinued(cmp.Or(m.why, why))
	}
	c.progress.Release()
}

// continueAfter prepares the legs that continue the stream after its leg on d was lost.
// done reports whether the client has been answered; if not, another pair must be tried.
func (c *completion) continueAfter(d *sched.Assignment, f *leg.Failure) (done bool) {
	if r := &c.r.Route; r.BeganDecode == "" {
		r.BeganPrefill, r.BeganDecode = r.Prefill, r.Decode
	}
	m, avoided := &c.move, &c.r.attempts.avoided.decode
	*m = move{lost: time.Now(), class: f.Class, end: m.end}
	if why := c.prepare(d, f); why != "" {
		m.why = why
		c.r.Answer.SendFailure(f)
		return true
	}
	again := slices.Contains(*avoided, d.Instance.Key)
	*avoided = append(*avoided, d.Instance.Key)
	c.r.attempts.lostTwice = c.r.attempts.lostTwice || again && c.s.Fallback // the others may serve decode-only
	return m.how == continuation.HowProxy || f.Class == leg.BrokeOff && !again && c.sameFirst(d.Instance)
}

// prepare waits for the stream's turn and determines how it is continued. why is the reason if it is not.
func (c *completion) prepare(d *sched.Assignment, f *leg.Failure) (why string) {
	m, t := &c.move, &c.r.attempts
	t.forgetTried(instance.Prefill)
	t.forgetTried(instance.Decode)
	t.secondRound, t.lost = byRole[bool]{}, true
	t.counted = -1 // the lost leg has served
	ended := c.progress.Ended()
	f.Rule.Retry = !ended
	if !c.r.note(d, f) && !ended {
		return continuation.ReasonBudget
	}
	// Reset it even if note did not count the failure, as for a removed instance.
	t.counted = 0
	if f.Class == leg.BrokeOff { // the instance may still serve
		t.forgetTried(instance.Decode)
	}
	if m.end == nil && !ended { // MayMove has taken the turn of a stream whose leg is healthy
		ctx, cancel := context.WithCancel(c.r.Origin.Client)
		defer cancel()
		m.afterDeadline(ctx, cancel)
		var err error
		if m.end, err = c.s.pace.Begin(ctx, c.r.Answer.Times.Start, c.maxMoves); err != nil {
			return continuation.ReasonDeadline
		}
	}
	m.queried = []instance.Key{d.Instance.Key}
	t.promptIDs = false
	c.noteEngine(d.Instance, t.tried.decode)
	_, c.progress.Cached = c.usage.Prompt()
	next, why := c.progress.Next(c.detokenize)
	if why != "" {
		return why
	}
	if m.how = next.How; next.Events != nil {
		c.r.Answer.Complete(next.Events)
		c.continued()
		m.how = continuation.HowProxy
		return ""
	}
	c.req, t.promptIDs = next.Request, m.how == continuation.HowChat
	c.pairs, c.unnotified, c.expired, c.spent = pairing{}, notifyFindings{}, 0, nil
	c.r.Origin.Times = &stage.Times{Start: m.lost} // the stages of the request end with its first token
	return ""
}

var errNoTurn = errors.New("the stream did not continue in time")

// maxMoves returns the number of streams that may be continued at the same time.
func (c *completion) maxMoves() (n int) {
	for _, in := range c.s.Picker.Members().All() {
		if in.Role == instance.Decode && in.Usable() && c.s.Health.Available(in.Key) {
			n += movesPerDecode
		}
	}
	return n
}

// sameFirst tries to continue the stream on the instance whose connection was lost, unless
// its engine has restarted: it has the KV cache. If it loses the stream again, other
// instances come first. done reports whether the client has been answered.
func (c *completion) sameFirst(in *instance.Instance) (done bool) {
	now, ok := c.s.Picker.Members().Lookup(in.Key)
	if !ok {
		return false
	}
	d, err := c.s.Picker.Take(now)
	if err != nil {
		return false
	}
	now, ok = c.s.Picker.Members().Lookup(in.Key) // after the leg was counted: see package drainproof
	if !ok || !now.Usable() || now.Incarnation() != in.Incarnation() || !c.s.Health.Available(in.Key) || c.s.needsPrefill(d) {
		d.Done()
		return false
	}
	c.r.notePick(d)
	f := c.answerOn(d)
	return f == nil || c.decodeFailed(d, f)
}

// detokenize implements continuation.Detokenize with a decode instance. For a stream that
// has lost its leg, it retries until continueWithin has passed.
func (c *completion) detokenize(ids []byte) (text string, err error) {
	if c.move.lost.IsZero() {
		return c.detokenizeOnce(ids, detokenizeLimit)
	}
	for due := c.move.lost.Add(continueWithin); ; {
		due = leg.Resumed(due)
		left := time.Until(due)
		if left <= 0 {
			return "", errNoTurn
		}
		text, err = c.detokenizeOnce(ids, min(left, detokenizeLimit))
		if err == nil || !sleep.For(c.r.Origin.Client, detokenizePause) {
			return text, err
		}
	}
}

func (c *completion) detokenizeOnce(ids []byte, limit time.Duration) (_ string, err error) {
	r, t, m := c.r, &c.r.attempts, &c.move
	t.wanted.Tentative = true
	tried, ranks := t.tried, t.triedRanks
	a, err := t.pickOnce(instance.Decode, nil, m.queried...)
	if errors.Is(err, sched.ErrNone) { // the instance that lost the stream may still do it
		m.queried = nil
		t.forgetTried(instance.Decode)
		a, err = t.pickOnce(instance.Decode, nil)
	}
	t.tried, t.triedRanks = tried, ranks
	t.wanted.Tentative = false
	if err != nil {
		return "", err
	}
	defer func() {
		if a.Done(); err != nil {
			m.queried = append(m.queried, a.Instance.Key)
		}
	}()
	body := append(append(make([]byte, 0, len(ids)+128), `{"tokens":`...), ids...)
	if name := c.req.EngineModel(); name != nil {
		body = append(append(body, `,"model":`...), name...)
	}
	l, resp, err := r.Origin.Ask(a.Instance, limit, http.MethodPost, "/detokenize", r.plainHeader(a), splice.Of(append(body, '}')))
	defer l.End()
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := relay.ReadAll(resp, maxDetokenized)
	if err != nil {
		return "", err
	}
	if resp.Status != http.StatusOK {
		return "", fmt.Errorf("%s answered /detokenize with %d", a.Instance.Key, resp.Status)
	}
	text := jsonscan.FindText(answer, 0, "prompt")
	if text == nil {
		return "", fmt.Errorf("%s answered /detokenize with no text", a.Instance.Key)
	}
	return string(text), nil
}
