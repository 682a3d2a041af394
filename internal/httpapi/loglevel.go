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

func (a *adminRoutes) answerLevel(c *gin.Context) {
	writeJSON(c, http.StatusOK, gin.H{"level": a.level.Name()})
}

func (a *adminRoutes) setLevel(c *gin.Context, raw []byte) error {
	var body struct {
		Level string `json:"level"`
	}
	if err := json.Unmarshal(raw, &body); err != nil || body.Level == "" {
		return badRequest(`send {"level":"debug"}`)
	}
	if err := a.level.Set(body.Level); err != nil {
		return badRequest("%w", err)
	}
	a.answerLevel(c)
	return nil
}
