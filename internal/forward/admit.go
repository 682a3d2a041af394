package forward

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/sched/admission"
)

const (
	priorityHeader = "X-Priority"
	timeoutHeader  = "X-Request-Timeout"
	maxTimeout     = time.Hour
)

// place sets the class, key and time limit of the request for the queue. An invalid header is an error only
// in mode admission.On.
func (c *call) place() *openai.Error {
	q := c.h.opts.Queue
	if q == nil {
		return nil
	}
	a := &c.flow.Admission
	class, highest := c.h.opts.Class(c.r)
	a.Class, a.Key = class, c.limit.key
	var bad *openai.Error
	if v := c.r.Header.Get(priorityHeader); v != "" {
		if is, ok := admission.ParseClass(v); ok {
			a.Class = max(is, highest)
		} else {
			bad = openai.BadRequest("", fmt.Sprintf("%s %.64q is none of interactive, default and batch", priorityHeader, v))
		}
	}
	if v := c.r.Header.Get(timeoutHeader); v != "" {
		if s, err := strconv.ParseFloat(v, 64); err == nil && s >= 1 && s <= maxTimeout.Seconds() {
			a.Timeout = time.Duration(s * float64(time.Second))
		} else {
			bad = openai.BadRequest("", fmt.Sprintf("%s %.64q is not a number of seconds from 1 to %g", timeoutHeader, v, maxTimeout.Seconds()))
		}
	}
	if bad != nil && q.Mode() == admission.On {
		bad.Final = true
		return bad
	}
	return nil
}
