package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// Fleet is this proxy's view of the instances.
type Fleet struct {
	Members instance.Source
	// InFlight returns the number of requests that this proxy has in flight on an instance.
	InFlight func(instance.Key) int64
	Opinion  func(instance.Key) instance.Opinion
	// NotServing returns why no request can be served, "" if requests can be; see
	// notice.View.
	NotServing func() string
	// Details returns further load figures of an instance, or nil.
	Details   func(instance.Key) *instance.ListedLoad
	Connector string // connector of instances whose record names none
}

// addresses returns the addresses of the instances of a role that are in use.
func addresses(s *instance.Snapshot, r instance.Role) []string {
	out := make([]string, 0, len(s.Usable(r)))
	for _, in := range s.Usable(r) {
		out = append(out, in.Address)
	}
	return out
}

// List returns the entry of one instance in /status, with the load and health that this
// proxy sees.
func (f *Fleet) List(in *instance.Instance) instance.Listing {
	if in.View == instance.Pending {
		return in.Listed(f.Connector)
	}
	l := in.Seen(f.Opinion(in.Key)).Listed(f.Connector)
	l.InFlight = new(f.InFlight(in.Key))
	l.Load = f.Details(in.Key)
	return l
}

// count returns the number of instances of a role that requests can be sent to.
func (f *Fleet) count(s *instance.Snapshot, r instance.Role) (n int) {
	for _, in := range s.All() {
		if in.Role == r && in.CanServe(f.Opinion(in.Key)) {
			n++
		}
	}
	return n
}

// health responds as vLLM does: an empty 200 while requests can be served.
func (f *Fleet) health(c *gin.Context) {
	if why := f.NotServing(); why != "" {
		unavailable(c, why)
		return
	}
	c.Status(http.StatusOK)
}

func unavailable(c *gin.Context, why string) {
	openai.WriteError(c.Writer, &openai.Error{Status: http.StatusServiceUnavailable,
		Type: openai.TypeUnavailable, Message: why, RetryAfter: retryAfter})
}

// healthcheck responds in the form of the load-balance proxy.
func (f *Fleet) healthcheck(c *gin.Context) {
	s := f.Members.Snapshot()
	var n int64
	for _, in := range s.All() {
		if in.View != instance.Pending && in.Role == instance.Decode {
			n += f.InFlight(in.Key)
		}
	}
	writeJSON(c, http.StatusOK, gin.H{
		"status":            "ok",
		"prefill_instances": len(s.Usable(instance.Prefill)),
		"decode_instances":  len(s.Usable(instance.Decode)),
		"request_num":       n,
	})
}
