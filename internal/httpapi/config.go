package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"regexp"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/openai"
)

// configPath is the route that shows the active settings, secrets masked; it needs an admin key.
const configPath = "/config"

// userInfo matches the user and the password of a URL.
var userInfo = regexp.MustCompile(`://[^/@\s"']+@`)

// logPath is the route that shows the last lines of the log; it needs an admin key.
const logPath = "/log"

func (d *Deps) log(c *gin.Context) {
	c.Data(http.StatusOK, "text/plain; charset=utf-8", userInfo.ReplaceAll(d.RecentLog(), []byte("://***@")))
}

func (d *Deps) config(c *gin.Context) {
	var b bytes.Buffer
	if err := d.Config(&b); err != nil {
		fail(c, http.StatusInternalServerError, openai.TypeInternal, err.Error())
		return
	}
	c.Data(http.StatusOK, "application/yaml", userInfo.ReplaceAll(b.Bytes(), []byte("://***@")))
}

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
