package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// modelRoutesPath is the path of all model routes. A longer path ends with the name of one, which may
// contain slashes.
const modelRoutesPath = "/models/routes"

func (d *Deps) addModelRoutes(e *gin.Engine, read, require gin.HandlerFunc) {
	g := e.Group(modelRoutesPath)
	g.GET("", read, func(c *gin.Context) {
		writeJSON(c, http.StatusOK, gin.H{"routes": append([]instance.ListedModelRoute{}, d.ModelRoutes()...)})
	})
	g.GET("/*name", read, func(c *gin.Context) {
		list, name := d.ModelRoutes(), c.Param("name")[1:]
		at := slices.IndexFunc(list, func(r instance.ListedModelRoute) bool { return r.Name == name })
		if at < 0 {
			noModelRoute(c, name)
			return
		}
		writeJSON(c, http.StatusOK, list[at])
	})
	g.PUT("/*name", require, refuseEncoded, d.handleBody(d.setModelRoute))
	g.DELETE("/*name", require, d.handle(func(c *gin.Context) error {
		revision, err := d.Admin.DeleteModelRoute(c.Request.Context(), c.Param("name")[1:], instance.Printable(c.Query("reason"), maxReason))
		switch {
		case err != nil:
			return err
		case revision == 0:
			noModelRoute(c, c.Param("name")[1:])
		default:
			writeJSON(c, http.StatusOK, gin.H{"revision": revision})
		}
		return nil
	}))
}

func noModelRoute(c *gin.Context, name string) {
	failAdmin(c, http.StatusNotFound, openai.TypeNotFound, asMessage, "There is no model route "+instance.Printable(name, 200)+".")
}

// setModelRoute writes the model route in the body: the JSON of its key in etcd, and optionally "for".
func (d *Deps) setModelRoute(c *gin.Context, raw []byte) (err error) {
	var limit struct{ For string }
	var lasts time.Duration
	if json.Unmarshal(raw, &limit) != nil || limit.For != "" {
		if lasts, err = settings.Duration(limit.For); err != nil || lasts <= 0 {
			return badRequest(`send {"targets":[{"model":"NAME"}]}; "for" is a duration such as "1h"`)
		}
	}
	revision, err := d.Admin.SetModelRoute(c.Request.Context(), c.Param("name")[1:], raw, lasts)
	if err != nil {
		return err
	}
	writeJSON(c, http.StatusOK, gin.H{"revision": revision})
	return nil
}
