package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

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
func (d *Deps) List(in *instance.Instance) instance.Listing {
	if in.View == instance.Pending {
		return in.Listed(d.Connector)
	}
	l := in.Seen(d.Opinion(in.Key)).Listed(d.Connector)
	l.InFlight = new(d.InFlight(in.Key))
	l.Load = d.Details(in.Key)
	return l
}

// count returns the number of instances of a role that requests can be sent to.
func (d *Deps) count(s *instance.Snapshot, r instance.Role) (n int) {
	for _, in := range s.All() {
		if in.Role == r && in.CanServe(d.Opinion(in.Key)) {
			n++
		}
	}
	return n
}

// health responds as vLLM does: an empty 200 while requests can be served.
func (d *Deps) health(c *gin.Context) {
	if why := d.NotServing(); why != "" {
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
func (d *Deps) healthcheck(c *gin.Context) {
	s := d.Members.Snapshot()
	var n int64
	for _, in := range s.All() {
		if in.View != instance.Pending && in.Role == instance.Decode {
			n += d.InFlight(in.Key)
		}
	}
	writeJSON(c, http.StatusOK, gin.H{
		"status":            "ok",
		"prefill_instances": len(s.Usable(instance.Prefill)),
		"decode_instances":  len(s.Usable(instance.Decode)),
		"request_num":       n,
	})
}
