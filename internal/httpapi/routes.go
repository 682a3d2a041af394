package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
)

// docs/reference/routes.md lists every route of vLLM. TestTable_MatchesCode compares it with this file.

// fanOutRoutes returns the routes of vLLM whose requests go to all instances. They need
// the admin key.
func fanOutRoutes() []string {
	return []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/start_profile", "/stop_profile"}
}

// addStoredRoutes adds the routes about a stored response, which only one instance has.
func (d *Deps) addStoredRoutes(client *gin.RouterGroup) {
	const one = "/v1/responses/{response_id}"
	get := d.Data.Stored(one, func(r *http.Request) string { return r.URL.Path[len("/v1/responses/"):] })
	client.GET("/v1/responses/:id", dataRoute(get))
	cancel := d.Data.Stored(one+"/cancel", func(r *http.Request) string {
		return strings.TrimSuffix(r.URL.Path[len("/v1/responses/"):], "/cancel")
	})
	client.POST("/v1/responses/:id/cancel", discardBody, dataRoute(cancel))
}

// passedRoutes returns the POST routes of vLLM, except forms, that one instance serves without a
// pair. The value is the reason why a generation has no separate prefill, "" if nothing is
// generated. A decode instance is preferred. An engine whose model or options lack the route
// responds with 404 or 403 itself.
func passedRoutes() map[string]string {
	routes := map[string]string{
		"/v1/chat/completions/batch": bypass.Route,
		"/cohere/v2/chat":            bypass.Route,
	}
	for _, path := range []string{
		"/v1/embeddings", "/v2/embed", "/pooling", "/classify",
		"/v1/score", "/score", "/generative_scoring", "/v1/rerank", "/rerank", "/v2/rerank",
		"/v1/systemone", "/v1/decisions",
		"/tokenize", "/detokenize", "/v1/messages/count_tokens",
		"/v1/completions/render", "/v1/chat/completions/render", "/v1/messages/render", "/v1/responses/render", "/cohere/v2/chat/render",
		"/v1/completions/derender", "/v1/chat/completions/derender",
	} {
		routes[path] = ""
	}
	return routes
}

// isOperatorRoute reports whether a route is for operators and their tools.
func isOperatorRoute(path string) bool {
	return isProxyRoute(path) || path == "/metrics" || slices.Contains(fanOutRoutes(), path)
}
