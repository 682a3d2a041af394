package httpapi

import (
	"cmp"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// The routes about API keys; they need the admin key.
const (
	usagePath  = "/usage"
	limitsPath = "/limits"
)

// Usage is the response of GET /usage.
type Usage struct {
	Proxy string              `json:"proxy"` // id
	Keys  []instance.KeyUsage `json:"keys"`
}

// addKeyRoutes adds the routes about API keys.
func (d *Deps) addKeyRoutes(e *gin.Engine, read, require gin.HandlerFunc) {
	e.GET(usagePath, read, func(c *gin.Context) { writeJSON(c, http.StatusOK, Usage{Proxy: d.ID, Keys: d.Usage()}) })
	e.GET(limitsPath, read, d.handle(d.answerLimits))
	name := func(c *gin.Context) {
		if !instance.ValidKeyName(c.Param("key")) {
			d.refuse(c, badRequest("invalid name of an API key: 1 to 64 visible ASCII characters without a slash"))
		}
	}
	e.GET(limitsPath+"/:key", read, name, d.handle(d.answerLimits))
	one := e.Group(limitsPath+"/:key", require, refuseEncoded, name)
	one.PUT("", d.handleBody(func(c *gin.Context, raw []byte) error {
		var body struct {
			instance.KeyLimits
			Reason string `json:"reason"`
		}
		if err := instance.DecodeStrict(raw, &body); err != nil { // otherwise a misspelled limit would be ignored silently
			return badRequest(`send limits such as {"rpm":600,"concurrent":10}: %s`, instance.JSONError(err))
		}
		body.V = cmp.Or(body.V, 1)
		switch err := cmp.Or(instance.CheckSet(raw), body.Check()); {
		case err != nil:
			return badRequest("%w", err)
		case len(body.Reason) > maxReason:
			return badRequest(`"reason" is longer than %d bytes`, maxReason)
		}
		if err := d.Admin.SetLimits(c.Request.Context(), c.Param("key"), body.KeyLimits, body.Reason); err != nil {
			return err
		}
		writeJSON(c, http.StatusOK, body.KeyLimits)
		return nil
	}))
	one.DELETE("", d.handle(func(c *gin.Context) error {
		existed, err := d.Admin.RemoveLimits(c.Request.Context(), c.Param("key"))
		switch {
		case err != nil:
			return err
		case !existed:
			fail(c, http.StatusNotFound, openai.TypeNotFound, "API key "+c.Param("key")+" has no limits")
		default:
			writeJSON(c, http.StatusOK, gin.H{"removed": c.Param("key")})
		}
		return nil
	}))
}

// answerLimits answers with the limits of one key, or of all.
func (d *Deps) answerLimits(c *gin.Context) error {
	all, err := d.Admin.Limits(c.Request.Context())
	key := c.Param("key")
	switch one, ok := all[key]; {
	case err != nil:
		return err
	case key == "":
		writeJSON(c, http.StatusOK, gin.H{"limits": all})
	case ok:
		writeJSON(c, http.StatusOK, one)
	default:
		fail(c, http.StatusNotFound, openai.TypeNotFound, "API key "+key+" has no limits")
	}
	return nil
}
