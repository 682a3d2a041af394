package forward

import (
	"net/http"

	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// Sessions defines how requests name their session. The name is hashed to choose an instance; it is neither
// logged nor published. The zero value finds no session.
type Sessions struct {
	// Header is the header that names the session, "" if Known applies.
	Header string
	// Known enables the identifiers of known clients; see knownSessionHeaders.
	Known bool
}

// knownSessionHeaders are the headers in which known clients name their session, in canonical form. The
// first one that a request has is used. test/agents has a recorded request with each of them.
var knownSessionHeaders = [...]string{ //nolint:gochecknoglobals // a constant list
	"X-Claude-Code-Session-Id", // Claude Code: code.claude.com/docs/en/llm-gateway-protocol
	"Session-Id",               // Codex: recorded with 0.169.0
	"X-Session-Affinity",       // OpenCode: packages/opencode/src/session/llm/request.ts
	"X-Session-Id",             // vLLM's own: SESSION_ID_HEADER in entrypoints/generate/base/serving.py
}

// maxSession is the maximum length of a session's name in bytes; longer values are ignored. OpenAI limits
// prompt_cache_key to 64 characters.
const maxSession = 256

// ofHeader returns the session that a header names, "" if it names none.
func (s Sessions) ofHeader(h http.Header) string {
	if s.Header != "" {
		return h.Get(s.Header)
	}
	if s.Known {
		for _, name := range &knownSessionHeaders {
			if v := h[name]; len(v) > 0 && len(v[0]) <= maxSession && v[0] != "" {
				return v[0]
			}
		}
	}
	return ""
}

// ofBody returns the session that a body names, "" if it names none: vLLM's session_id, else
// prompt_cache_key, which OpenAI's API defines for requests that share a prefix, and which Codex and OpenCode
// set to their session. user, safety_identifier and metadata.user_id name a user, who may have many sessions.
func (s Sessions) ofBody(r *request.Request) string {
	if !s.Known || r == nil {
		return ""
	}
	for _, f := range [...]request.Field{request.FieldSessionID, request.FieldPromptCacheKey} {
		if raw := r.Raw(f); len(raw) > 2 && raw[0] == '"' && len(raw) <= maxSession+2 {
			return string(jsonscan.Unquote(raw))
		}
	}
	return ""
}
