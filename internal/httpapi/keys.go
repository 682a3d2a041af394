package httpapi

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/httpapi/apikeys"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// requireClient rejects requests without a valid client key. Without a ring it accepts all.
func requireClient(ring *apikeys.Ring) gin.HandlerFunc {
	return func(c *gin.Context) {
		if ring == nil {
			return
		}
		_, sent, ok := ring.Check(c.Request)
		message := "wrong API key"
		switch {
		case ok:
			return
		case !sent && apikeys.IsAnthropic(c.Request):
			message = "no API key: send it as x-api-key or as Authorization: Bearer KEY"
		case !sent:
			message = "no API key: send it as Authorization: Bearer KEY"
		}
		ring.Refused.Add(1)
		c.Header("WWW-Authenticate", "Bearer")
		openai.ErrorKindOf(c.Request.URL.Path).WriteError(c.Writer, &openai.Error{Status: http.StatusUnauthorized, Type: openai.TypeAuth, Message: message})
		c.Abort()
	}
}

// refuseEncoded refuses requests with an encoded body on operator routes. The data path
// does so itself, and logs it.
func refuseEncoded(c *gin.Context) {
	if e := openai.CheckEncoding(c.Request.Header); e != nil {
		openai.WriteError(c.Writer, e)
		c.Abort()
	}
}

// requireRight rejects requests without an admin key that has a right. It adds the name of the key to
// the context of the request.
func requireRight(ring *apikeys.Ring, right apikeys.Rights) gin.HandlerFunc {
	return func(c *gin.Context) {
		key, ok := adminKeyOf(c.Request)
		found, known := ring.Find(key)
		switch {
		case ring == nil:
			failAdmin(c, http.StatusForbidden, openai.TypePermission, asDetail,
				"the admin routes are off: start the proxy with ADMIN_API_KEY or --admin-api-keys-file set")
		case !ok:
			failAdmin(c, http.StatusUnauthorized, openai.TypeAuth, asDetail, "no admin key: send it as X-Api-Key")
		case !known:
			failAdmin(c, http.StatusForbidden, openai.TypePermission, asDetail, "Forbidden: Invalid API Key.")
		case !found.Rights.Has(right):
			failAdmin(c, http.StatusForbidden, openai.TypePermission, asDetail, "Forbidden: the key "+found.Name+" may not do that.")
		case found.Name != "":
			c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), keyName{}, found.Name))
		}
	}
}

// keyName is the context key for the name of an admin key.
type keyName struct{}

// KeyName returns the name of the admin key from the context of a request; "" if the key has none.
func KeyName(ctx context.Context) string {
	name, _ := ctx.Value(keyName{}).(string)
	return name
}

// requireAdminOrHide rejects requests without the admin key. Requests without a key for operators
// get 404, as from a vLLM without the route, so that tools that probe it continue.
func requireAdminOrHide(ring *apikeys.Ring) gin.HandlerFunc {
	require := requireRight(ring, apikeys.Operate)
	return func(c *gin.Context) {
		key, _ := adminKeyOf(c.Request)
		if _, known := ring.Find(key); known || c.GetHeader("X-Api-Key") != "" {
			require(c)
			return
		}
		fail(c, http.StatusNotFound, "", "Not Found")
	}
}

func adminKeyOf(r *http.Request) (string, bool) {
	if key := r.Header.Get("X-Api-Key"); key != "" {
		return key, true
	}
	return apikeys.Bearer(r)
}

// HoldsAdminKey returns a function that reports whether a request has an admin key that may change
// the fleet. If none is configured, no request has it.
func HoldsAdminKey(ring *apikeys.Ring) func(*http.Request) bool {
	return func(r *http.Request) bool {
		found, _ := ring.Find(r.Header.Get("X-Api-Key"))
		return found.Rights.Has(apikeys.Operate)
	}
}
