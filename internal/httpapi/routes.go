package httpapi

import "github.com/pdmesh/pdmesh/internal/alone"

// fannedOut gives the routes of vLLM that all instances are told, for who has the
// admin key.
func fannedOut() []string {
	return []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/start_profile", "/stop_profile"}
}

// passed gives the routes of vLLM that one instance answers alone, decode first, and
// why a generated answer has no prefill there: "" for what is not generated. Engines
// answer 404 or 403 themselves where their model or an option of theirs has no such
// route.
func passed() map[string]string {
	routes := map[string]string{
		"/v1/chat/completions/batch": alone.Route,
		"/cohere/v2/chat":            alone.Route,
	}
	for _, path := range []string{
		"/v1/embeddings", "/v2/embed", "/pooling", "/classify",
		"/v1/score", "/score", "/generative_scoring", "/v1/rerank", "/rerank", "/v2/rerank",
		"/tokenize", "/detokenize", "/v1/messages/count_tokens",
		"/v1/completions/render", "/v1/chat/completions/render", "/v1/messages/render", "/v1/responses/render", "/cohere/v2/chat/render",
		"/v1/completions/derender", "/v1/chat/completions/derender",
	} {
		routes[path] = ""
	}
	return routes
}
