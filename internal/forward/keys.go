package forward

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched/keylimit"
)

// limit is the state of one request under the limits of its key.
type limit struct {
	ticket  keylimit.Ticket
	key     string // name of the key; the key may be removed before the request ends
	engines bool   // the request is for engines, and within the limits
}

// admit reserves the expected use of a request from the limits of its key. It answers a request above a
// limit and returns false.
func (c *call) admit(w keylimit.Want) bool {
	keys := c.h.opts.Keys
	c.limit.engines = true
	if keys == nil || !keys.Limited() {
		return true
	}
	var refusal *keylimit.Refusal
	name := cmp.Or(c.limit.key, instance.DefaultKey)
	if c.limit.ticket, refusal = keys.Reserve(name, w); !c.limit.ticket.Limited() {
		return true
	}
	requests, tokens := c.limit.ticket.Standings()
	header := c.answer.Client.Header()
	setStanding(header, "requests", requests)
	setStanding(header, "tokens", tokens)
	if refusal == nil {
		return true
	}
	c.limit.engines, c.limit.ticket = false, keylimit.Ticket{}
	c.flow.Route.Refused = "key_limit_" + refusal.Kind.String()
	e := &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, RetryAfter: refusal.Wait}
	e.Message = fmt.Sprintf("Rate limit reached for API key %s: limit %d %s. Please try again in %ss.", name, refusal.Limit, limitText(refusal.Kind), e.RetryAfterSeconds())
	c.answer.Refuse(e)
	return false
}

func limitText(k keylimit.Kind) string {
	if k == keylimit.Concurrent {
		return "requests at the same time"
	}
	return strings.ReplaceAll(k.String(), "_", " ") + " per minute"
}

// setStanding sets OpenAI's rate-limit headers for one limit.
func setStanding(h http.Header, of string, s keylimit.Standing) {
	if s.Limit == 0 {
		return
	}
	h.Set("X-Ratelimit-Limit-"+of, strconv.FormatInt(s.Limit, 10))
	h.Set("X-Ratelimit-Remaining-"+of, strconv.FormatInt(s.Remaining, 10))
	h.Set("X-Ratelimit-Reset-"+of, s.Reset.Round(time.Millisecond).String())
}

// passed returns the expected use of a request to one instance; reason is as in passThrough. Routes that
// only convert text compute no tokens.
func (c *call) passed(bytes int, reason string) keylimit.Want {
	if strings.Contains(c.endpoint, "tokenize") || strings.Contains(c.endpoint, "render") || strings.Contains(c.endpoint, "count_tokens") {
		bytes = 0
	}
	return keylimit.Want{Bytes: bytes, Generates: reason != ""}
}

// settle counts the use of the request's key and ends its reservation.
func (c *call) settle() {
	keys := c.h.opts.Keys
	if keys == nil || !c.limit.engines {
		return
	}
	c.limit.engines = false
	t := &c.answer.Tokens
	used := keylimit.Usage{Input: t.Input, Cached: t.Cached, Output: t.Output, Served: c.answer.Computed()}
	keys.Count(cmp.Or(c.limit.key, instance.DefaultKey), used)
	c.limit.ticket.End(used)
}

// endUnfinished releases the resources of a request that panicked before finish released them.
func (c *call) endUnfinished() {
	c.answer.StopKeepAlive()
	if c.flow.Body != nil {
		c.flow.Body.Release(false) // a leg may still read it
	}
	c.limit.ticket.End(keylimit.Usage{})
}
