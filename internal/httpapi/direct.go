package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// Direct gives the handlers of the routes that generate, by path, for package front,
// which needs no router. They check keys, set CORS headers and treat a panic as
// NewRouter's do.
func Direct(d Deps) map[string]http.HandlerFunc {
	routes := map[string]http.HandlerFunc{}
	for _, kind := range openai.Generating() {
		routes[kind.Path()] = d.direct(kind, d.Data.Generate(kind))
	}
	return routes
}

func (d *Deps) direct(kind openai.Kind, h forward.HandlerFunc) http.HandlerFunc {
	ring, cors := d.ClientKeys, newCORS(d.CORS)
	return func(w http.ResponseWriter, r *http.Request) {
		cors.setHeaders(w.Header(), r)
		if e := checkClientKey(ring, r); e != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			kind.WriteError(w, e)
			return
		}
		c := &trackingClient{Client: clientOf(w)}
		defer func() {
			if p := recover(); p != nil {
				handlePanic(d.Log, p, c)
			}
		}()
		h(c, r)
	}
}

// trackingClient is a client that knows whether its answer has begun. Package front's
// response does not tell, and after a panic a second head must not follow a first.
type trackingClient struct {
	forward.Client
	started bool
}

// WriteHeader implements http.ResponseWriter.
func (c *trackingClient) WriteHeader(status int) {
	c.started = true
	c.Client.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (c *trackingClient) Write(p []byte) (int, error) {
	c.started = true
	return c.Client.Write(p)
}

// Flush implements forward.Client.
func (c *trackingClient) Flush() {
	c.started = true
	c.Client.Flush()
}

// Written implements startedWriter.
func (c *trackingClient) Written() bool { return c.started }

// clientOf gives the client of a response. The response of package front is one; one of
// net/http gets an adapter.
func clientOf(w http.ResponseWriter) forward.Client {
	if c, ok := w.(forward.Client); ok {
		return c
	}
	return relay.Std(w)
}

// dataRoute makes a handler of the data path one of gin.
func dataRoute(h forward.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) { h(clientOf(c.Writer), c.Request) }
}
