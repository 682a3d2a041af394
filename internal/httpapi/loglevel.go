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

// logLevelPath is the route that shows and changes the log level; it needs the admin key.
const logLevelPath = "/log-level"

func (d *Deps) answerLevel(c *gin.Context) {
	writeJSON(c, http.StatusOK, gin.H{"level": d.LogLevel.Name()})
}

func (d *Deps) setLevel(c *gin.Context, raw []byte) error {
	var body struct {
		Level string `json:"level"`
	}
	if err := json.Unmarshal(raw, &body); err != nil || body.Level == "" {
		return badRequest(`send {"level":"debug"}`)
	}
	if err := d.LogLevel.Set(body.Level); err != nil {
		return badRequest("%w", err)
	}
	d.answerLevel(c)
	return nil
}
