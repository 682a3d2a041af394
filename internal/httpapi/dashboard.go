package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
)

// DashboardEvents is where the dashboard's events are.
const DashboardEvents = "/dashboard/events"

// AdminActions are the changes that there is a route for below /instances.
func AdminActions() []string {
	all := []string{"add", "remove"}
	for _, verb := range allVerbs() {
		all = append(all, string(verb))
	}
	return all
}

// dashboard adds the route of its events; the page itself is at /, see index.
func (d *Deps) addDashboardRoute(e *gin.Engine) {
	if d.Dashboard != nil {
		e.GET(DashboardEvents, gin.WrapH(d.Dashboard))
	}
}

// index answers browsers with the dashboard, and everybody else with a few facts.
func (d *Deps) index(c *gin.Context) {
	if d.Dashboard != nil {
		c.Writer.Header().Add("Vary", "Accept")
		if wantsPage(c.Request.Header.Values("Accept")) {
			d.Dashboard.ServeHTTP(c.Writer, c.Request)
			return
		}
	}
	routes := []string{"POST /v1/completions", "POST /v1/chat/completions", "GET /v1/models", "GET /status"}
	for _, action := range AdminActions() {
		routes = append(routes, "POST /instances/"+action)
	}
	routes = append(routes, "POST /route", "GET /health", "GET /readyz", "GET /livez", "GET /version", "GET /metrics")
	writeJSON(c, http.StatusOK, gin.H{"name": "pdmesh", "version": d.Version, "routes": routes})
}

// wantsPage tells whether a client names HTML and does not like JSON better. Browsers
// name it first; curl and libraries take anything, and get JSON as ever.
func wantsPage(accept []string) bool {
	page, data := 0.0, 0.0
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		media, params, _ := strings.Cut(part, ";")
		q := quality(params)
		switch media = strings.ToLower(strings.TrimSpace(media)); {
		case slices.Contains([]string{"text/html", "application/xhtml+xml"}, media):
			page = max(page, q)
		case media == "application/json":
			data = max(data, q)
		}
	}
	return page > 0 && page >= data
}

// quality is the q among the parameters of a media range, 1 where there is none.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		name, v, _ := strings.Cut(p, "=")
		if strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				return 0
			}
			return q
		}
	}
	return 1
}
