package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// requireClient rejects requests without a valid client key.
func requireClient(ring *apikeys.Ring) gin.HandlerFunc {
	return func(c *gin.Context) {
		if e := checkClientKey(ring, c.Request); e != nil {
			c.Header("WWW-Authenticate", "Bearer")
			openai.KindOf(c.Request.URL.Path).WriteError(c.Writer, e)
			c.Abort()
		}
	}
}

// checkClientKey returns the reason why a request is rejected, nil if it is accepted.
// Without a ring every request is accepted.
func checkClientKey(ring *apikeys.Ring, r *http.Request) *openai.Error {
	if ring == nil {
		return nil
	}
	_, sent, ok := ring.Check(r)
	message := "wrong API key"
	switch {
	case ok:
		return nil
	case !sent && apikeys.IsAnthropic(r):
		message = "no API key: send it as x-api-key or as Authorization: Bearer KEY"
	case !sent:
		message = "no API key: send it as Authorization: Bearer KEY"
	}
	return &openai.Error{Status: http.StatusUnauthorized, Type: openai.TypeAuth, Message: message}
}

// refuseEncoded refuses requests with an encoded body on operator routes. The data path
// does so itself, and logs it.
func refuseEncoded(c *gin.Context) {
	if e := openai.CheckEncoding(c.Request.Header); e != nil {
		openai.WriteError(c.Writer, e)
		c.Abort()
	}
}

// requireAdmin rejects requests without the admin key.
func requireAdmin(adminKey string) gin.HandlerFunc {
	ring := apikeys.Of(adminKey)
	return func(c *gin.Context) {
		key, ok := adminKeyOf(c.Request)
		_, right := ring.Find(key)
		switch {
		case adminKey == "":
			failAdmin(c, http.StatusForbidden, openai.TypePermission, asDetail,
				"the admin routes are off: start the proxy with ADMIN_API_KEY set, or use pdctl")
		case !ok:
			failAdmin(c, http.StatusUnauthorized, openai.TypeAuth, asDetail, "no admin key: send it as X-Api-Key")
		case !right:
			failAdmin(c, http.StatusForbidden, openai.TypePermission, asDetail, "Forbidden: Invalid API Key.")
		}
	}
}

// requireAdminOrHide rejects requests without the admin key. Requests without any key get
// 404, as from a vLLM without the route, so that tools that probe it continue.
func requireAdminOrHide(adminKey string) gin.HandlerFunc {
	holds, require := HoldsAdminKey(adminKey), requireAdmin(adminKey)
	return func(c *gin.Context) {
		switch {
		case holds(c.Request):
		case c.GetHeader("X-Api-Key") != "":
			require(c) // responds that the key is wrong
		default:
			fail(c, http.StatusNotFound, "", "Not Found")
			c.Abort()
		}
	}
}

func adminKeyOf(r *http.Request) (string, bool) {
	if key := r.Header.Get("X-Api-Key"); key != "" {
		return key, true
	}
	return apikeys.Bearer(r)
}

// HoldsAdminKey returns a function that reports whether a request has the admin key. If
// none is configured, no request has it.
func HoldsAdminKey(adminKey string) func(*http.Request) bool {
	if adminKey == "" {
		return func(*http.Request) bool { return false }
	}
	ring := apikeys.Of(adminKey)
	return func(r *http.Request) bool {
		_, ok := ring.Find(r.Header.Get("X-Api-Key"))
		return ok
	}
}
