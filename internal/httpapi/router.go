package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// EtcdStatus is the state of etcd in /status and /readyz.
type EtcdStatus struct {
	State       string   `json:"state"` // cold, listing, live, suspect, stale
	Embedded    bool     `json:"embedded"`
	Endpoints   []string `json:"endpoints"`              // as configured
	Members     []string `json:"members,omitempty"`      // endpoints of further members in use
	Departed    []string `json:"departed,omitempty"`     // configured endpoints that are not in the list of members, and did not answer as members
	Ended       string   `json:"ended,omitempty"`        // why the embedded etcd does not run
	Ends        int64    `json:"ends,omitempty"`         // number of unexpected exits of the embedded etcd
	LastContact string   `json:"last_contact,omitempty"` // RFC 3339
	LastError   string   `json:"last_error,omitempty"`

	Epochs  int64    `json:"epochs,omitempty"`  // number of times that etcd was replaced by another store
	Orphans int      `json:"orphans,omitempty"` // instances that are used although their lease has ended
	Held    int      `json:"held,omitempty"`    // orphans whose keys disappeared together with many others of their role
	Kept    []string `json:"kept,omitempty"`    // keys that are in use although etcd lacks them
}

// DataHandlers build the handlers of the data path; package forward implements them.
type DataHandlers struct {
	// Generate builds the handler of an endpoint that goes through prefill and decode.
	Generate func(kind openai.Kind) forward.HandlerFunc
	// Passthrough builds the handler of an endpoint that one instance serves without a
	// pair. alone is the reason why a generation has no separate prefill, "" for
	// endpoints that generate nothing.
	Passthrough func(endpoint, alone string) forward.HandlerFunc
	// Stored builds the handler of an endpoint about one stored response; its second
	// argument returns the response's id.
	Stored func(endpoint string, id func(*http.Request) string) forward.HandlerFunc
	// Form is Passthrough for requests that are forms with a file in them.
	Form func(endpoint, alone string) forward.HandlerFunc
	// PassthroughGet is Passthrough for GET requests, which have no body.
	PassthroughGet func(endpoint string) forward.HandlerFunc
	// FanOut builds the handler of an endpoint whose requests go to all instances.
	FanOut func(endpoint string) forward.HandlerFunc
	// Models builds the handler of GET /v1/models; its argument returns the id
	// of a single model, "" for the list.
	Models func(id func(*http.Request) string) forward.HandlerFunc
	// Explain answers with the instances that a request would go to, and sends nothing.
	Explain http.HandlerFunc
	// Requests returns the number of requests in progress.
	Requests func() int64
}

// Deps are the dependencies of the routes.
type Deps struct {
	Data  DataHandlers
	Admin Admin
	// Members are the instances, in this proxy's view.
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
	// Prompts returns the state of the policies' prompt indexes, by role.
	Prompts func() map[instance.Role]instance.ListedPrompts
	// Digests returns the load digests of the proxies; nil: digests are off.
	Digests func() []LoadDigest
	// Queues returns the queues in front of the engines.
	Queues func() []instance.ListedQueue
	// Roles returns the advice about the number of instances of each role.
	Roles func() []instance.Advice
	// KVEvents returns the state of the KV event streams of the engines.
	KVEvents func() []KVEvents
	Etcd     func() EtcdStatus
	// Ready returns nil if the proxy has started and is not stopping, otherwise the reason.
	Ready   func() error
	Metrics http.Handler
	// Dashboard serves a page to browsers at /, and its events at DashboardEvents;
	// nil: no dashboard.
	Dashboard http.Handler
	Log       logrus.FieldLogger
	LogLevel  LogLevel

	CORS       CORS
	ClientKeys *apikeys.Ring         // nil: clients need no key
	Config     func(io.Writer) error // writes the settings, secrets masked
	RecentLog  func() []byte         // returns the last lines of the log
	AdminKey   *apikeys.Ring         // nil: the admin routes refuse all requests
	Version    string
	ID         string // of this proxy, as in etcd
	// Notices returns the notices of package notice.
	Notices func() []string
	// ModelRoutes returns the model routes.
	ModelRoutes func() []instance.ListedModelRoute
	// Limits are this proxy's limits, as /status shows them.
	Limits map[string]any
	// Usage returns the use of API keys at this proxy.
	Usage func() []instance.KeyUsage
}

// NewRouter returns the handler of the client routes. With split, it does not have the
// operator routes (status, admin, metrics), which NewAdminRouter has.
func NewRouter(d Deps, split bool) http.Handler {
	e := newGin(d.Log)
	e.Use(newCORS(d.CORS).middleware)
	client := e.Group("/", requireClient(d.ClientKeys))
	for _, kind := range openai.Generating() {
		client.POST(kind.Path(), dataRoute(d.Data.Generate(kind)))
	}
	for path, alone := range passedRoutes() {
		client.POST(path, dataRoute(d.Data.Passthrough(path, alone)))
	}
	d.addStoredRoutes(client)
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations"} {
		client.POST(path, dataRoute(d.Data.Form(path, bypass.Route)))
	}
	client.GET("/tokenizer_info", dataRoute(d.Data.PassthroughGet("/tokenizer_info")))
	client.GET("/v1/models", dataRoute(d.Data.Models(func(*http.Request) string { return "" })))
	// Model ids hold slashes (org/name), so the rest of the path is the id.
	one := dataRoute(d.Data.Models(func(r *http.Request) string {
		return r.URL.Path[len("/v1/models/"):]
	}))
	client.GET("/v1/models/*id", func(c *gin.Context) {
		if c.Param("id") == "/" {
			fail(c, http.StatusNotFound, "", "Not Found")
			return
		}
		one(c)
	})
	if split {
		d.Dashboard = nil // it is at the operators' address
	} else {
		d.addOperatorRoutes(e)
	}
	d.addHealthRoutes(e)
	return e
}

// dataRoute adapts a handler of the data path to gin.
func dataRoute(h forward.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) { h(relay.Std(c.Writer), c.Request) }
}

// NewAdminRouter returns the handler of the routes of --admin-listen.
func NewAdminRouter(d Deps) http.Handler {
	e := newGin(d.Log)
	d.addHealthRoutes(e)
	d.addOperatorRoutes(e)
	return e
}

func newGin(log logrus.FieldLogger) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	// Addresses in X-Forwarded-For are under the control of the client.
	_ = e.SetTrustedProxies(nil) // nil cannot fail
	e.Use(recovery(log), lingerAfterRefusal, discardUnusedBody, refuseProbes)
	// These are the messages of FastAPI, which vLLM uses.
	e.NoRoute(func(c *gin.Context) { fail(c, http.StatusNotFound, "", "Not Found") })
	e.NoMethod(func(c *gin.Context) {
		if isProxyRoute(c.Request.URL.Path) {
			fail(c, http.StatusMethodNotAllowed, openai.TypeMethod, fmt.Sprintf("%s does not take %s", c.Request.URL.Path, c.Request.Method))
			return
		}
		fail(c, http.StatusMethodNotAllowed, "", "Method Not Allowed")
	})
	return e
}

// isProxyRoute reports whether the route does not exist in vLLM. Errors of these routes have one form.
func isProxyRoute(path string) bool {
	if verb, ok := strings.CutPrefix(path, "/instances/"); ok {
		return slices.Contains(AdminActions(), verb)
	}
	if strings.HasPrefix(path, modelRoutesPath) {
		return true
	}
	switch path {
	case "/status", "/roles", "/route", "/livez", "/readyz", "/healthcheck", logLevelPath, logPath, configPath, DashboardEvents, usagePath, limitsPath:
		return true
	}
	return strings.HasPrefix(path, limitsPath+"/")
}

// refuseProbes refuses the probes of proxies and agents that mistake this proxy for an engine. A proxy
// that is its own instance would forward each request to itself in a loop.
func refuseProbes(c *gin.Context) {
	if c.GetHeader(instance.ProbeHeader) == "" {
		return
	}
	fail(c, http.StatusLoopDetected, openai.TypeBadRequest, "this is a pdmesh proxy, not an engine: register vLLM's own address")
	c.Abort()
}

// fail responds with an error. Without a kind it has the form {"detail":message}.
func fail(c *gin.Context, status int, kind, message string) {
	openai.WriteError(c.Writer, &openai.Error{Status: status, Type: kind, Message: message})
	c.Abort()
}

// recovery responds with 500 to a panic in a handler, or aborts the connection if the
// response has started. It repanics http.ErrAbortHandler, which aborts the connection; gin's
// own recovery would end an aborted stream as if it were complete (TestPanic).
func recovery(log logrus.FieldLogger) gin.HandlerFunc {
	return func(c *gin.Context) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(http.ErrAbortHandler)
			}
			log.WithField("panic", fmt.Sprint(p)).Errorf("handler failed\n%s", debug.Stack())
			if c.Writer.Written() {
				panic(http.ErrAbortHandler)
			}
			fail(c, http.StatusInternalServerError, openai.TypeInternal, "internal error of the proxy")
		}()
		c.Next()
	}
}

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
