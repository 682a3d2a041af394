package httpapi

import (
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// Members gives the current membership.
type Members interface {
	Snapshot() *instance.Snapshot
}

// Load tells how many requests this proxy has in flight on an instance.
type Load interface {
	InFlight(k instance.Key) int64
}

// Opinion is this proxy's own view of an instance: whether it may be picked, and why
// not.
type Opinion interface {
	Available(k instance.Key) bool
	// View returns the view of an instance, "" for one that may be picked.
	View(k instance.Key) instance.View
	Why(k instance.Key) string
}

// Fleet is how this proxy sees the instances.
type Fleet struct {
	Members Members
	Load    Load
	Opinion Opinion
	// Details gives more of the load of an instance, nil for nothing; nil: never any.
	Details   func(instance.Key) *instance.ListedLoad
	Connector string // of instances whose record names none
	// Fallback tells that decode instances alone can serve.
	Fallback bool
}

// addresses has those of the instances of a role that are used.
func addresses(s *instance.Snapshot, r instance.Role) []string {
	out := make([]string, 0, len(s.Usable(r)))
	for _, in := range s.Usable(r) {
		out = append(out, in.Address)
	}
	return out
}

// List gives the entry of one instance in /status, with this proxy's load and opinion.
func (f *Fleet) List(in *instance.Instance) instance.Listing {
	l := in.List()
	l.Warning = in.Warning(f.Connector)
	if in.View == instance.Pending {
		return l
	}
	n := f.Load.InFlight(in.Key)
	l.InFlight = &n
	l.Load = f.listLoad(in.Key)
	if in.Usable() {
		if v := f.Opinion.View(in.Key); v != "" {
			l.View = v
		}
		if why := f.Opinion.Why(in.Key); why != "" {
			l.Reason = instance.Printable(why, 300)
		}
	}
	return l
}

// available tells whether some instance of the role may be picked, or is only slow.
func (f *Fleet) available(s *instance.Snapshot, r instance.Role) bool {
	for _, in := range s.Usable(r) {
		if f.Opinion.Available(in.Key) {
			return true
		}
	}
	return slices.ContainsFunc(s.All(), func(in *instance.Instance) bool { return in.Role == r && in.Slow() })
}

// health answers as vLLM does: an empty 200 while a request could be served.
func (f *Fleet) health(c *gin.Context) {
	s := f.Members.Snapshot()
	switch {
	case !f.available(s, instance.Decode):
		unavailable(c, "no decode instance is available")
	case !f.Fallback && !f.available(s, instance.Prefill):
		unavailable(c, "no prefill instance is available")
	default:
		c.Status(http.StatusOK)
	}
}

func unavailable(c *gin.Context, why string) {
	openai.WriteError(c.Writer, &openai.Error{Status: http.StatusServiceUnavailable,
		Type: openai.TypeUnavailable, Message: why, RetryAfter: retryAfter})
}

// healthcheck answers in the form of the load-balance proxy.
func (f *Fleet) healthcheck(c *gin.Context) {
	s := f.Members.Snapshot()
	var n int64
	for _, in := range s.All() {
		if in.View != instance.Pending && in.Role == instance.Decode {
			n += f.Load.InFlight(in.Key)
		}
	}
	writeJSON(c, http.StatusOK, gin.H{
		"status":            "ok",
		"prefill_instances": len(s.Usable(instance.Prefill)),
		"decode_instances":  len(s.Usable(instance.Decode)),
		"request_num":       n,
	})
}

func (f *Fleet) listLoad(k instance.Key) *instance.ListedLoad {
	if f.Details == nil {
		return nil
	}
	return f.Details(k)
}
