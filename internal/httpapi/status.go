package httpapi

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/instance"
)

const retryAfter = time.Second

// Status is the response of /status. The first four fields are those of the reference proxies. They list
// the usable members, including those that this proxy has ejected.
type Status struct {
	PrefillCount int                `json:"prefill_node_count"`
	DecodeCount  int                `json:"decode_node_count"`
	Prefill      []string           `json:"prefill_nodes"`
	Decode       []string           `json:"decode_nodes"`
	Instances    []instance.Listing `json:"instances"`
	Notices      []string           `json:"notices"` // see package notice
	Revision     int64              `json:"revision"`
	Etcd         EtcdStatus         `json:"etcd"`
	ID           string             `json:"id"`
	Version      string             `json:"version"`
	Limits       map[string]any     `json:"limits,omitempty"`
	// ModelRoutes are the model routes as this proxy uses them.
	ModelRoutes []instance.ListedModelRoute `json:"model_routes,omitempty"`
	// Digests are the load digests of all proxies, this one included.
	Digests []LoadDigest `json:"load_digests,omitempty"`
	// Prompts is the state of the policies' prompt indexes, by role.
	Prompts map[instance.Role]instance.ListedPrompts `json:"prompts,omitempty"`
	// Queues are those in front of the engines, with --queue observe or on.
	Queues []instance.ListedQueue `json:"queues,omitempty"`
	// KVEvents is the state of the engines' KV event streams, with --kv-events.
	KVEvents []KVEvents `json:"kv_events,omitempty"`
}

// KVEvents is the state of the event stream of one data-parallel rank.
type KVEvents struct {
	Instance   string  `json:"instance"`
	Rank       int     `json:"rank"`
	State      string  `json:"state"` // lost, replaying, following, no events
	Error      string  `json:"error,omitempty"`
	Blocks     int     `json:"blocks"`
	Batches    uint64  `json:"batches"`
	Gaps       uint64  `json:"gaps"`
	LagSeconds float64 `json:"lag_seconds"`
}

// LoadDigest is the last load digest of a proxy.
type LoadDigest struct {
	ID        string  `json:"id"`
	Own       bool    `json:"own,omitempty"`
	Applied   int64   `json:"applied"`
	Age       float64 `json:"age_seconds"` // since it was received; an empty digest is not renewed
	Instances int     `json:"instances"`
	LeftOut   int     `json:"left_out,omitempty"`
	Weight    float64 `json:"worth"` // its weight in policies, from 1 down to 0
	Ignored   string  `json:"ignored,omitempty"`
}

func (d *Deps) addOperatorRoutes(e *gin.Engine) {
	e.GET("/status", d.status)
	e.POST("/status", discardBody, d.status) // the reference proxy's example sends POST
	e.GET("/roles", func(c *gin.Context) { writeJSON(c, http.StatusOK, gin.H{"roles": d.Roles()}) })
	read, require := requireRight(d.AdminKey, apikeys.Read), requireRight(d.AdminKey, apikeys.Operate)
	d.addAdminRoutes(e, read, require)
	e.GET(configPath, read, d.config)
	e.GET(logPath, read, d.log)
	e.POST("/route", read, refuseEncoded, func(c *gin.Context) { d.Data.Explain(c.Writer, c.Request) })
	d.addKeyRoutes(e, read, require)
	for _, path := range fanOutRoutes() {
		e.POST(path, requireAdminOrHide(d.AdminKey), dataRoute(d.Data.FanOut(path)))
	}
	e.GET("/metrics", gin.WrapH(d.Metrics))
	if d.Dashboard != nil {
		e.GET(DashboardEvents, gin.WrapH(d.Dashboard))
	}
}

func (d *Deps) addHealthRoutes(e *gin.Engine) {
	for path, h := range map[string]gin.HandlerFunc{
		"/health": d.health, "/ping": d.health, // as vLLM has it, for SageMaker
		"/healthcheck": d.healthcheck, "/readyz": d.readyz, "/": func(c *gin.Context) { d.index(c, e.Routes()) },
		"/livez":   func(c *gin.Context) { c.String(http.StatusOK, "ok\n") },
		"/version": func(c *gin.Context) { writeJSON(c, http.StatusOK, gin.H{"version": d.Version}) },
	} {
		e.GET(path, h)
		e.HEAD(path, h) // for load balancers
	}
	e.POST("/ping", discardBody, d.health)
	e.GET("/load", func(c *gin.Context) { writeJSON(c, http.StatusOK, gin.H{"server_load": d.Data.Requests()}) })
}

func (d *Deps) status(c *gin.Context) {
	s := d.Members.Snapshot()
	out := Status{
		Prefill: addresses(s, instance.Prefill), Decode: addresses(s, instance.Decode),
		Instances: make([]instance.Listing, 0, len(s.All())),
		Notices:   append([]string{}, d.Notices()...),
		Revision:  s.Revision, Etcd: d.Etcd(), ID: d.ID, Version: d.Version, Limits: d.Limits,
		ModelRoutes: d.ModelRoutes(), Digests: d.Digests(), Prompts: d.Prompts(), Queues: d.Queues(), KVEvents: d.KVEvents(),
	}
	out.PrefillCount, out.DecodeCount = len(out.Prefill), len(out.Decode)
	for _, in := range s.All() {
		out.Instances = append(out.Instances, d.List(in))
	}
	writeJSON(c, http.StatusOK, out)
}

// readyz reports whether a load balancer should send requests here. "started" reports
// whether the membership has been read, which does not require any instance.
func (d *Deps) readyz(c *gin.Context) {
	s := d.Members.Snapshot()
	body := gin.H{
		"ready": true, "started": true, "revision": s.Revision, "etcd": d.Etcd(),
		"prefill_instances": d.count(s, instance.Prefill),
		"decode_instances":  d.count(s, instance.Decode),
	}
	status, reason := http.StatusOK, ""
	if err := d.Ready(); err != nil {
		body["started"], reason = false, err.Error()
	} else {
		reason = d.NotServing()
	}
	if reason != "" {
		status = http.StatusServiceUnavailable
		body["ready"], body["reason"] = false, reason
	}
	writeJSON(c, status, body)
}
