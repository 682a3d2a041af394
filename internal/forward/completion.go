package forward

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/upstream"
)

// maxPrefillAnswer bounds what a prefill instance may answer. Block ids of a
// prompt of a million tokens take well under a megabyte.
const maxPrefillAnswer = 16 << 20

// maxErrorBody bounds the error texts that are passed on.
const maxErrorBody = 1 << 20

// completion is an exchange that goes through prefill and decode.
type completion struct{ *exchange }

// handed is a prefill that succeeded: what it left, where, and until when it
// may be used.
type handed struct {
	pick     *sched.Assignment
	handover connector.Handover
	until    time.Time
	engineID string
}

// singleUse tells that the hand-over is one that a single decode instance may read,
// and only while prefill holds the blocks for it.
func (kv *handed) singleUse(d connector.Connector) bool {
	return !d.SharesPool() && !kv.handover.Empty()
}

// The reasons for a decode instance to serve alone, beside openai.Request.Bypass.
const (
	aloneNoPrefill     = "no_prefill"     // nobody there
	alonePrefillFailed = "prefill_failed" // everybody tried
	aloneForcedTool    = "forced_tool"    // protocol rule R1c
)

func (c *completion) run() {
	if c.req.Bypass != "" {
		c.alone(c.req.Bypass)
		return
	}
	for {
		kv, done := c.prefill()
		if done {
			return
		}
		if c.decode(kv) {
			return
		}
	}
}

// prefill makes some prefill instance compute the prompt. done tells that the
// request has been answered in another way.
func (c *completion) prefill() (kv *handed, done bool) {
	for {
		p, err := c.pick(instance.Prefill, nil)
		if err != nil {
			return nil, c.withoutPrefill(err)
		}
		kv, f := c.prefillOn(p)
		if f == nil {
			return kv, false
		}
		p.Done()
		if c.note(p.Instance, f) {
			continue
		}
		switch {
		case f.class == OurEdit:
			c.alone(aloneForcedTool)
		case f.rule.retry && f.answer.status >= 500 && c.h.opts.Fallback:
			// The tries are used up; a decode instance can still do it all.
			c.alone(alonePrefillFailed)
		default:
			c.tell(f)
		}
		return nil, true
	}
}

// withoutPrefill ends or saves a request that no prefill instance can take.
func (c *completion) withoutPrefill(err error) bool {
	switch {
	case c.ctx.Err() != nil:
		c.gone()
	case errors.Is(err, sched.ErrUnknownModel):
		c.refuse(c.unknownModel(c.model))
	case c.h.opts.Fallback && c.last != nil:
		c.alone(alonePrefillFailed)
	case c.h.opts.Fallback:
		c.alone(aloneNoPrefill)
	case c.last != nil:
		c.tell(c.last)
	default:
		c.refuse(unpicked(err, instance.Prefill, c.model))
	}
	return true
}

func (c *completion) prefillOn(p *sched.Assignment) (*handed, *failure) {
	dialect := c.dialect(p)
	c.kv = handed{pick: p, engineID: c.engineID()}
	kv := &c.kv
	c.entry.Prefill, c.entry.Revision = p.Instance.Address, p.Revision
	l := c.begin(p, wait{limit: c.h.opts.Prefill, cause: errPrefillTimeout})
	defer l.end()
	l.request = upstream.Request{
		Instance: p.Instance, Method: http.MethodPost, Path: c.req.Kind.Path(),
		Body: dialect.Prefill(c.req).Segments(), NoHeader: true, Whole: true, Now: c.now,
	}
	c.giveHeader(&l.request, kv.engineID)
	resp, err := c.do(l)
	if err != nil {
		return nil, c.ofExchange(p.Instance, err)
	}
	p.Heard()
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		f := c.errorAnswer(l, p.Instance, resp)
		if f.class == Status4xx && f.answer.status == http.StatusBadRequest && c.req.ForcedTool {
			// One token of a forced tool call cannot be parsed (protocol rule
			// R1c): our edit's fault, not the client's.
			f = newFailure(OurEdit, f.answer, f.err)
		}
		return nil, f
	}
	var ended time.Time // the prefill, from when on the lease of the KV runs
	if !resp.AtHand {
		ended = time.Now()
	}
	answer, err := c.readBounded(resp, maxPrefillAnswer)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, c.ofAnswer(p.Instance, err.Error())
	case err != nil:
		return nil, c.ofExchange(p.Instance, err)
	}
	if c.now = time.Now(); resp.AtHand {
		ended = c.now // or a moment before
	}
	kv.until = ended.Add(c.h.opts.KVBudget)
	if kv.handover, err = dialect.Handover(answer); err != nil {
		return nil, c.ofAnswer(p.Instance, err.Error())
	}
	if kv.handover.Empty() && !dialect.SharesPool() {
		c.h.opts.Recorder.HandoverMissing()
	}
	c.prefilled = answer
	c.served(p.Instance)
	return kv, nil
}

// decode runs the answer off a prefill. It tells whether the request has been
// answered; if not, a new prefill is due.
func (c *completion) decode(kv *handed) (done bool) {
	defer kv.pick.Done()
	dialect := c.dialect(kv.pick)
	for again := false; ; again = true {
		if kv.singleUse(dialect) {
			if why := c.stillGood(kv, again); why != "" {
				c.h.opts.Recorder.Retried(instance.Prefill, why)
				return false
			}
		}
		d, err := c.pick(instance.Decode, kv.pick)
		if err != nil {
			c.withoutDecode(err)
			return true
		}
		begun := time.Now()
		f := c.decodeOn(d, kv, kv.engineID, dialect.Decode(c.req, kv.handover))
		d.Done()
		if f == nil {
			return true
		}
		if f.taken && kv.singleUse(dialect) {
			c.h.opts.Recorder.HandoverSpent(f.class)
		}
		if f.class == HandoverExpired {
			c.silent += time.Since(begun)
		}
		if !c.note(d.Instance, f) {
			c.tell(f)
			return true
		}
		if dialect.SharesPool() {
			kv.engineID = c.engineID()
			continue
		}
		if f.taken {
			// The hand-over is spent. The prefill instance did nothing wrong and
			// may be asked again.
			c.tried.prefill = nil
			return false
		}
	}
}

// stillGood tells why a hand-over must not be used any more, "" if it may: its
// lease is about to end, which is no matter when it has just been made, or the life
// of the engine that made it has ended.
func (c *completion) stillGood(kv *handed, again bool) Class {
	switch {
	case again && time.Now().After(kv.until):
		c.tried.prefill = nil
		return HandoverExpired
	case c.h.opts.Picker.Gone(kv.pick) != nil:
		return Gone
	}
	return ""
}

// alone lets one decode instance do the whole request, without KV transfer.
func (c *completion) alone(reason string) {
	c.entry.Alone, c.entry.Prefill, c.prefilled = reason, "", nil
	for {
		d, err := c.pick(instance.Decode, nil)
		if err != nil {
			c.withoutDecode(err)
			return
		}
		f := c.decodeOn(d, nil, c.engineID(), c.dialect(d).Decode(c.req, connector.Handover{}))
		d.Done()
		if f == nil {
			return
		}
		if !c.note(d.Instance, f) {
			c.tell(f)
			return
		}
	}
}

func (c *completion) withoutDecode(err error) {
	switch {
	case c.ctx.Err() != nil:
		c.gone()
	case errors.Is(err, sched.ErrUnknownModel):
		c.refuse(c.unknownModel(c.model))
	case c.last != nil && c.last.rule.retry:
		c.tell(c.last)
	default:
		c.refuse(unpicked(err, instance.Decode, c.model))
	}
}

// decodeOn sends the decode leg and passes its answer on. nil means that the
// client has been answered, well or visibly broken.
func (c *completion) decodeOn(d *sched.Assignment, kv *handed, engineID string, body openai.Body) *failure {
	c.entry.Decode, c.entry.Revision = d.Instance.Address, d.Revision
	w := wait{limit: c.h.opts.FirstByte, cause: errFirstByteTimeout}
	if !c.req.Stream {
		// vLLM sends the header of a non-streamed answer when the answer is
		// whole: generation time, which no first-byte limit may cut.
		w.limit = c.h.opts.NonStream
	}
	// A leg whose hand-over ran out while the instance was silent is sent again
	// with a new one; for the client it is the same wait.
	w.limit, w.silence = max(w.limit-c.silent, 1), max(c.h.opts.FirstByte-c.silent, 1)
	var p *sched.Assignment
	if kv != nil {
		p = kv.pick
		if kv.singleUse(c.dialect(p)) {
			w.kvUntil = kv.until
		}
	}
	l := c.begin(d, w)
	defer l.end()
	l.request = upstream.Request{
		Instance: d.Instance, Method: http.MethodPost, Path: c.req.Kind.Path(),
		Body: body.Segments(), Whole: !c.req.Stream, Now: c.now,
	}
	c.giveHeader(&l.request, engineID)
	resp, err := c.do(l)
	if err != nil {
		return c.ofExchange(d.Instance, err)
	}
	d.Heard()
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		return c.errorAnswer(l, d.Instance, resp)
	}
	if !resp.AtHand {
		l.next(c.h.opts.Idle, errIdleTimeout)
	}
	if isEventStream(resp.Header) {
		return c.stream(l, d, p, resp, false)
	}
	return c.whole(l, d, resp)
}

// errorGrace is how long an engine may take over the text of an error that is not the
// last word: it is for the client that gets it if no other instance serves.
const errorGrace = time.Second

// errorAnswer reads an answer whose status is not 200 and judges it. The leg waits for
// its text no longer than for the next piece of any answer.
func (x *exchange) errorAnswer(l *leg, in *instance.Instance, resp *upstream.Response) *failure {
	f := x.ofStatus(in, resp.Status, resp.Header)
	wait := x.h.opts.Idle
	if f.rule.retry {
		wait = min(wait, errorGrace)
	}
	if !resp.AtHand {
		l.next(wait, errIdleTimeout)
	}
	x.readText(f, resp)
	return f
}

// readText reads the text of an error, for the client that may get it.
func (x *exchange) readText(f *failure, resp *upstream.Response) {
	if f.answer.own != nil {
		return
	}
	body, err := x.readBounded(resp, maxErrorBody)
	if err != nil {
		// The status alone still says what to do; its text is lost.
		body = (&openai.Error{Status: resp.Status, Type: openai.TypeBadGateway,
			Message: "the instance's error text could not be read"}).JSON()
		resp.Header.Set("Content-Type", "application/json")
	}
	f.answer.body = body
}

var errTooLarge = errors.New("the answer is too large")

func (x *exchange) readBounded(resp *upstream.Response, limit int64) ([]byte, error) {
	if resp.Length > limit {
		return nil, errTooLarge
	}
	if resp.Length > 0 {
		buf := x.answers.take(int(resp.Length)+1, smallAnswers, mostAnswers)
		n, err := io.ReadFull(resp.Body, buf[:resp.Length])
		if err != nil {
			return buf[:n], err
		}
		return buf[:n], drained(resp.Body, buf[n:])
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, errTooLarge
	}
	return b, err
}

// drained sees the end of a body of known length, so that its connection goes
// back to the pool. one is room for a byte that should not come.
func drained(r io.Reader, one []byte) error {
	if _, err := r.Read(one); err != nil && err != io.EOF {
		return err
	}
	return nil
}
