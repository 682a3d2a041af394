package httpapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
)

// CORS configures which other origins may use the proxy from a browser. The fields
// correspond to vLLM's options. The zero value allows none.
type CORS struct {
	Origins     []string // "https://chat.example.com", or "*" for all
	Methods     []string // "*" for all
	Headers     []string // of requests, "*" for all
	Credentials bool     // requests may carry credentials such as cookies
}

// exposedHeaders are the response headers that a page may read in addition to the
// CORS-safelisted ones. vLLM exposes none.
const exposedHeaders = "Retry-After, X-Request-Id, X-Should-Retry, " +
	"X-Ratelimit-Limit-Requests, X-Ratelimit-Limit-Tokens, X-Ratelimit-Remaining-Requests, X-Ratelimit-Remaining-Tokens, X-Ratelimit-Reset-Requests, X-Ratelimit-Reset-Tokens, " +
	"X-PD-Attempts, X-PD-Cached-Tokens, X-PD-Decided, X-PD-Decode, X-PD-Decode-Only, X-PD-Elsewhere, X-PD-Model, X-PD-Model-Fallback, X-PD-Policy, X-PD-Prefill, X-PD-Revision, X-PD-Timing"

// These are the values of Starlette's CORSMiddleware, which vLLM uses. test/real recorded
// its responses in testdata/cors.json, and TestCORSAsVLLM compares with them.
const (
	allMethods      = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY"
	preflightVary   = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network"
	preflightMaxAge = "600"
)

// cors is a CORS with the methods for "*", and with the headers that are always allowed.
type cors struct {
	CORS
	anyOrigin, anyHeader bool
}

func newCORS(o CORS) *cors {
	c := &cors{CORS: o, anyOrigin: slices.Contains(o.Origins, "*"), anyHeader: slices.Contains(o.Headers, "*")}
	if slices.Contains(o.Methods, "*") {
		c.Methods = strings.Split(allMethods, ", ")
	}
	c.Headers = append([]string{"Accept", "Accept-Language", "Content-Language", "Content-Type"}, o.Headers...)
	slices.Sort(c.Headers)
	c.Headers = slices.Compact(c.Headers)
	return c
}

// allowOrigin sets the headers that allow the origin of a request, and reports whether it is allowed.
func (c *cors) allowOrigin(answer http.Header, origins []string) bool {
	if c.Credentials {
		answer["Access-Control-Allow-Credentials"] = []string{"true"}
	}
	switch {
	case c.anyOrigin && !c.Credentials:
		answer["Access-Control-Allow-Origin"] = []string{"*"}
	case c.anyOrigin || slices.Contains(c.Origins, origins[0]):
		answer["Access-Control-Allow-Origin"] = origins[:1]
	default:
		return false
	}
	return true
}

// setHeaders sets the CORS headers of a response whose head is not yet sent.
func (c *cors) setHeaders(answer http.Header, r *http.Request) {
	if len(c.Origins) == 0 {
		return
	}
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		answer["Vary"] = []string{"Origin"}
		return
	}
	c.allowOrigin(answer, origins)
	answer["Access-Control-Expose-Headers"] = []string{exposedHeaders}
	answer["Vary"] = []string{"Origin"}
}

// middleware answers preflight requests and sets the CORS headers of all other
// responses. A preflight needs no key, since browsers send none with it. Operator
// routes allow no other origin.
func (c *cors) middleware(g *gin.Context) {
	r := g.Request
	if isOperatorRoute(r.URL.Path) {
		return
	}
	if isPreflight(r) {
		c.preflight(g)
		g.Abort()
		return
	}
	c.setHeaders(g.Writer.Header(), r)
}

// isPreflight reports whether a request is a CORS preflight.
func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header["Access-Control-Request-Method"] != nil
}

// preflight answers a CORS preflight request (OPTIONS).
func (c *cors) preflight(g *gin.Context) {
	asked, answer := g.Request.Header, g.Writer.Header()
	answer.Set("Vary", preflightVary)
	answer.Set("Access-Control-Allow-Methods", strings.Join(c.Methods, ", "))
	answer.Set("Access-Control-Max-Age", preflightMaxAge)
	var failed []string
	if !c.allowOrigin(answer, asked["Origin"]) {
		failed = append(failed, "origin")
	}
	if !slices.Contains(c.Methods, asked.Get("Access-Control-Request-Method")) {
		failed = append(failed, "method")
	}
	wanted, wants := asked["Access-Control-Request-Headers"]
	switch {
	case c.anyHeader && wants:
		answer.Set("Access-Control-Allow-Headers", wanted[0])
	case !c.anyHeader:
		answer.Set("Access-Control-Allow-Headers", strings.Join(c.Headers, ", "))
		if wants && slices.ContainsFunc(strings.Split(wanted[0], ","), func(h string) bool {
			return !slices.ContainsFunc(c.Headers, func(allowed string) bool { return strings.EqualFold(allowed, strings.TrimSpace(h)) })
		}) {
			failed = append(failed, "headers")
		}
	}
	if asked["Access-Control-Request-Private-Network"] != nil {
		failed = append(failed, "private-network")
	}
	if len(failed) > 0 {
		g.String(http.StatusBadRequest, "Disallowed CORS "+strings.Join(failed, ", "))
		return
	}
	g.String(http.StatusOK, "OK")
}
