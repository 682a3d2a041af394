package httpapi

import (
	"net/http"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// ExemptFromLimit reports whether a request is served even if the limit of open
// connections is reached. Exempt are health checks, preflight requests and operator routes,
// except the dashboard's event stream, which would hold its connection.
func ExemptFromLimit(r *http.Request) bool {
	switch path := r.URL.Path; path {
	case "/", "/health", "/ping", "/version":
		return true
	case DashboardEvents:
		return false
	default:
		return isOperatorRoute(path) || isPreflight(r)
	}
}

// RefuseAtLimit returns a handler that refuses a request on a connection beyond the limit. Pages of
// the origins that o allows can read the response.
func RefuseAtLimit(o CORS) http.HandlerFunc {
	c := newCORS(o)
	return func(w http.ResponseWriter, r *http.Request) {
		if !isOperatorRoute(r.URL.Path) {
			c.setHeaders(w.Header(), r)
		}
		openai.ErrorKindOf(r.URL.Path).WriteError(w, &openai.Error{
			Status: http.StatusServiceUnavailable, Type: openai.TypeUnavailable, RetryAfter: retryAfter,
			Message: "the proxy has reached its limit for open connections (--max-connections)",
		})
		linger(w, r)
	}
}
