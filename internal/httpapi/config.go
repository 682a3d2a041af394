package httpapi

import (
	"bytes"
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
