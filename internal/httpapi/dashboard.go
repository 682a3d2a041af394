package httpapi

import (
	"cmp"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"
)

// DashboardEvents is the path of the dashboard's events.
const DashboardEvents = "/dashboard/events"

// AdminActions returns the last part of each route below /instances.
func AdminActions() []string {
	all := []string{"add", "remove"}
	for _, verb := range allVerbs() {
		all = append(all, string(verb))
	}
	return all
}

// index serves the dashboard to browsers, and the version and main routes of this listener
// to all other clients.
func (d *Deps) index(c *gin.Context, served gin.RoutesInfo) {
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
	routes = slices.DeleteFunc(routes, func(route string) bool {
		return !slices.ContainsFunc(served, func(r gin.RouteInfo) bool { return r.Method+" "+r.Path == route })
	})
	writeJSON(c, http.StatusOK, gin.H{"name": "pdmesh", "version": d.Version, "routes": routes})
}

// wantsPage reports whether Accept contains HTML with at least the quality of JSON.
// Browsers list it first. curl and libraries send */* and get JSON.
func wantsPage(accept []string) bool {
	page, data := 0.0, 0.0
	for part := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		media, params, _ := mime.ParseMediaType(part)
		q, _ := strconv.ParseFloat(cmp.Or(params["q"], "1"), 64) // RFC 9110, 12.4.2; 0 if it is invalid
		switch media {
		case "text/html", "application/xhtml+xml":
			page = max(page, q)
		case "application/json":
			data = max(data, q)
		}
	}
	return page > 0 && page >= data
}
