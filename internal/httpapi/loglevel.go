package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/gin-gonic/gin"
)

// LogLevel is the level of the proxy's log; see logging.Level.
type LogLevel interface {
	Name() string
	Set(name string) error
}

// logLevelPath is the route that shows and changes the log level.
const logLevelPath = "/log-level"

// addLogLevelRoutes adds the routes of the log level, which need the admin key.
func (d *Deps) addLogLevelRoutes(e *gin.Engine) {
	if d.LogLevel == nil {
		return
	}
	answerLevel := func(c *gin.Context) { writeJSON(c, http.StatusOK, gin.H{"level": d.LogLevel.Name()}) }
	g := e.Group(logLevelPath, requireAdmin(d.AdminKey))
	g.GET("", answerLevel)
	g.PUT("", func(c *gin.Context) {
		raw, err := readAdminBody(c.Request)
		if err != nil {
			d.adminError(c, err)
			return
		}
		var body struct {
			Level string `json:"level"`
		}
		if err := json.Unmarshal(raw, &body); err != nil || body.Level == "" {
			d.adminError(c, badRequest(`send {"level":"debug"}`))
			return
		}
		if err := d.LogLevel.Set(body.Level); err != nil {
			d.adminError(c, badRequest("%w", err))
			return
		}
		answerLevel(c)
	})
}
