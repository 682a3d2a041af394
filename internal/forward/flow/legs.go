package flow

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/forward/leg"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/openai/sse"
	"github.com/pdmesh/pdmesh/internal/sched"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

// maxPrefillAnswer bounds the answer of a prefill instance, in bytes. The block ids of a
// prompt of a million tokens take well under a megabyte.
const maxPrefillAnswer = 16 << 20

// newPair returns the pair of a new attempt, with a new id and a new key.
func (c *completion) newPair(p, d *sched.Assignment) connector.Pair {
	pair := connector.Pair{
		Prefill: p.Instance, PrefillRank: p.Rank,
		ID: leg.EngineID(c.r.Origin.ID), Key: leg.Key(), TokenIDs: p.Lesson.Wanted() && !c.progress.Continued(),
		AnswerIDs: c.progress.WantsIDs(),
	}
	if d != nil {
		pair.Decode, pair.DecodeRank = d.Instance, d.Rank
	}
	return pair
}

// send sends the request of a leg; id is used if the dialect has not set one.
func (c *completion) send(l *leg.Leg, id string, out *connector.Leg) (*upstream.Response, error) {
	header := c.r.Origin.NewHeader(cmp.Or(out.ID, id), out.Header...)
	return l.Send(http.MethodPost, cmp.Or(out.Path, c.r.Endpoint), header, out.Body)
}

// prefillOn sends the prefill leg and reads the answer. It may run in another goroutine.
func (c *completion) prefillOn(l *leg.Leg, id string, out connector.Leg) (answer []byte, f *leg.Failure) {
	resp, err := c.send(l, id, &out)
	if err != nil {
		return nil, l.JudgeError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		f := relay.ReadError(l, resp, c.s.Idle)
		if c.cutReason != "" {
			f = l.JudgeCut(f, c.kind)
		}
		return nil, f
	}
	answer, err = relay.ReadAll(resp, maxPrefillAnswer)
	switch {
	case errors.Is(err, relay.ErrTooLarge):
		return nil, l.JudgeTooLarge("more than 16 MiB of a prefill")
	case err != nil:
		return nil, l.JudgeError(err)
	case sse.Aborted(c.kind, answer):
		return nil, l.JudgeFinish(leg.Aborted)
	}
	l.Answered()
	return answer, nil
}

// prefillWait returns the limits of a prefill leg.
func (c *completion) prefillWait() leg.Wait {
	return leg.Wait{Limit: leg.PrefillLimit(c.s.Prefill), Streamed: true, Patient: c.r.attempts.overtaken}
}

// decodeWait returns the limits of a decode leg.
func (c *completion) decodeWait() leg.Wait {
	w := c.s.answerWait(c.stream)
	w.Streamed, w.Patient = c.stream, c.r.attempts.overtaken
	return w
}

// answerWait returns the limits of a leg with a streamed or a non-streamed answer.
func (s *Settings) answerWait(stream bool) leg.Wait {
	first := leg.FirstByteLimit(s.FirstByte)
	w := leg.Wait{Limit: first, Silence: first}
	if !stream {
		// vLLM sends the header of a non-streamed answer when the answer is complete: a
		// first-byte limit would cut off the generation.
		w.Limit = leg.NonStreamLimit(s.NonStream)
	}
	return w
}

// decodeOn sends the decode leg and relays its answer. It returns nil if the client has
// been answered, completely or with a broken connection.
func (c *completion) decodeOn(l *leg.Leg, id string, out connector.Leg, commit func()) *leg.Failure {
	defer c.move.bound(l)()
	resp, err := c.send(l, id, &out)
	if err != nil {
		return l.JudgeError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.Status != http.StatusOK {
		return relay.ReadError(l, resp, c.s.Idle)
	}
	givesUp := ""
	if d := c.s.dialects[l.Connector()]; d != nil { // nil for an instance that has a stored response and no connector
		givesUp = d.Terms(l.Instance).GivesUp
	}
	rewriters := []relay.Rewriter{&c.usage, relay.HideTransferParams(c.kind)}
	source := relay.Source{Leg: l, Resp: resp, Commit: commit, Rewriters: rewriters, GivesUp: givesUp, Replays: c.progress.Replays()}
	if c.progress != nil {
		source.Continuation = c
	}
	if c.progress.Records() {
		c.progress.NoteEngine(connector.TakesPromptIDs(l.Instance))
		source.Commit = func() {
			commit()
			l.Watch()
		}
	}
	return c.r.relay(source)
}
