package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// Outcome is the result of an add.
type Outcome uint8

// The outcomes.
const (
	Added   Outcome = iota
	Already         // the instance was a member before
	Waiting         // the instance does not answer yet; a proxy adds it when it does
)

// ErrRefused is wrapped by the error for an invalid change. The status is 400.
var ErrRefused = errors.New("refused")

// ErrUnavailable is wrapped by the error for a change that etcd cannot store now. The status is 503.
var ErrUnavailable = errors.New("etcd is not available")

// Admin changes the membership, model routes and limits of API keys in etcd. A key of role
// instance.Both represents two memberships, which change together. Errors that wrap neither
// ErrRefused nor ErrUnavailable are answered with 500.
type Admin interface {
	// Add returns when the snapshot of this proxy contains the change. ranks is the number
	// of data-parallel ranks of the instance, 0 if the request does not specify it.
	Add(ctx context.Context, k instance.Key, ranks int) (Outcome, error)
	// Remove reports whether the instance was a member or pending.
	Remove(ctx context.Context, k instance.Key) (bool, error)
	// ChangeIntent changes the intent of operators for an instance. Like Add, it returns
	// when the snapshot of this proxy contains the change.
	ChangeIntent(ctx context.Context, k instance.Key, change IntentChange) (IntentResult, error)
	// SetModelRoute writes the model route of a name, for the duration d unless it is 0. It returns the
	// revision of the change, 0 if nothing changed. route is JSON.
	SetModelRoute(ctx context.Context, name string, route []byte, d time.Duration) (int64, error)
	// DeleteModelRoute returns revision 0 if there is no such model route.
	DeleteModelRoute(ctx context.Context, name, reason string) (int64, error)
	// Limits returns the limits of all API keys, by name.
	Limits(ctx context.Context) (map[string]instance.KeyLimits, error)
	// SetLimits replaces the limits of a key.
	SetLimits(ctx context.Context, key string, l instance.KeyLimits, reason string) error
	// RemoveLimits reports whether the key had limits.
	RemoveLimits(ctx context.Context, key string) (bool, error)
}

// maxAdminBody bounds the body of an admin request in bytes.
const maxAdminBody = 1 << 20

// maxPerRequest bounds the number of instances in one admin request.
const maxPerRequest = 256

// change has the common fields of requests to /instances/..., in the form of either
// reference proxy.
type change struct {
	role instance.Role
	keys []instance.Key
	// plural reports whether "instances" was sent, the form of the load-balance proxy. The
	// response then uses that proxy's messages.
	plural bool
	ranks  int // data-parallel ranks of each instance, 0 if not specified
}

// addAdminRoutes adds the routes with which operators change the fleet and the log level. read checks
// the key of routes that change nothing, require that of the others.
func (d *Deps) addAdminRoutes(e *gin.Engine, read, require gin.HandlerFunc) {
	g := e.Group("/instances", require, refuseEncoded)
	g.POST("/add", d.handleBody(d.addInstances))
	g.POST("/remove", d.handleBody(d.removeInstances))
	for _, verb := range allVerbs() {
		g.POST("/"+string(verb), d.intend(verb))
	}
	d.addModelRoutes(e, read, require)
	e.GET(logLevelPath, read, d.answerLevel)
	e.PUT(logLevelPath, require, refuseEncoded, d.handleBody(d.setLevel))
}

type changeAnswer struct {
	Message string   `json:"message"`
	Prefill []string `json:"current_prefill_instances"`
	Decode  []string `json:"current_decode_instances"`
}

func (d *Deps) addInstances(c *gin.Context, raw []byte) error {
	ch, err := parseChange(raw)
	if err != nil {
		return err
	}
	var members, waiting []string
	for _, k := range ch.keys {
		outcome, err := d.Admin.Add(c.Request.Context(), k, ch.ranks)
		if err != nil {
			return withDone(err, k, append(members, waiting...))
		}
		if outcome == Waiting {
			waiting = append(waiting, k.Address)
		} else {
			members = append(members, k.Address)
		}
	}
	d.answer(c, addMessage(ch, members, waiting))
	return nil
}

func addMessage(ch change, members, waiting []string) string {
	if !ch.plural {
		if len(waiting) > 0 {
			return fmt.Sprintf("Waiting for %s_instance %s to start.", ch.role, waiting[0])
		}
		return fmt.Sprintf("Added %s to %s_instances.", members[0], ch.role)
	}
	var parts []string
	if len(members) > 0 {
		parts = append(parts, fmt.Sprintf("add %s instances: %s.", ch.role, pythonList(members)))
	}
	if len(waiting) > 0 {
		parts = append(parts, fmt.Sprintf("Instances %s are waiting to be added.", pythonList(waiting)))
	}
	return strings.Join(parts, " ")
}

func (d *Deps) removeInstances(c *gin.Context, raw []byte) error {
	ch, err := parseChange(raw)
	if err != nil {
		return err
	}
	var removed, unknown []string
	for _, k := range ch.keys {
		existed, err := d.Admin.Remove(c.Request.Context(), k)
		if err != nil {
			return withDone(err, k, removed)
		}
		if existed {
			removed = append(removed, k.Address)
		} else {
			unknown = append(unknown, k.Address)
		}
	}
	switch {
	case len(removed) == 0 && !ch.plural:
		failAdmin(c, http.StatusNotFound, openai.TypeNotFound, asMessage,
			fmt.Sprintf("Instance %s is not in the %s_instances.", unknown[0], ch.role))
	case len(removed) == 0:
		failAdmin(c, http.StatusNotFound, openai.TypeNotFound, asMessage,
			fmt.Sprintf("Instances %s are not in the %s instances.", pythonList(unknown), ch.role))
	case !ch.plural:
		d.answer(c, fmt.Sprintf("Removed %s from %s_instances.", removed[0], ch.role))
	default:
		msg := fmt.Sprintf("remove %s instances: %s.", ch.role, pythonList(removed))
		if len(unknown) > 0 {
			msg += fmt.Sprintf(" Instances %s are not in the %s instances.", pythonList(unknown), ch.role)
		}
		d.answer(c, msg)
	}
	return nil
}

func (d *Deps) answer(c *gin.Context, message string) {
	writeJSON(c, http.StatusOK, d.lists(message))
}

func (d *Deps) lists(message string) changeAnswer {
	s := d.Members.Snapshot()
	return changeAnswer{Message: message, Prefill: addresses(s, instance.Prefill), Decode: addresses(s, instance.Decode)}
}

// handle returns a handler that calls f, and refuses the request if f returns an error.
func (d *Deps) handle(f func(*gin.Context) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		if err := f(c); err != nil {
			d.refuse(c, err)
		}
	}
}

// handleBody is handle for a route whose requests have a JSON body.
func (d *Deps) handleBody(f func(c *gin.Context, raw []byte) error) gin.HandlerFunc {
	return d.handle(func(c *gin.Context) error {
		raw, err := readAdminBody(c)
		if err != nil {
			return err
		}
		return f(c, raw)
	})
}

func (d *Deps) refuse(c *gin.Context, err error) {
	switch {
	case errors.Is(err, ErrRefused):
		failAdmin(c, http.StatusBadRequest, openai.TypeBadRequest, asDetail, strings.TrimPrefix(err.Error(), ErrRefused.Error()+": "))
	case errors.Is(err, ErrUnavailable):
		unavailable(c, err.Error())
		c.Abort()
	default:
		d.Log.WithError(err).Error("admin request failed")
		fail(c, http.StatusInternalServerError, openai.TypeInternal, err.Error())
	}
}

// asMessage and asDetail are the fields in which the reference proxies send the text of an error, and
// scripts expect it.
const (
	asMessage = "message" // of a response about instances
	asDetail  = "detail"  // of a refused request
)

// failAdmin is fail for the admin routes. It also adds the text in the field of the
// reference proxies.
func failAdmin(c *gin.Context, status int, kind, field, text string) {
	quoted, _ := json.Marshal(text) // a string always marshals
	body := (&openai.Error{Status: status, Type: kind, Message: text}).JSON()
	c.Data(status, "application/json", fmt.Appendf(nil, `{%q:%s,%s`, field, quoted, body[1:]))
	c.Abort()
}

// withDone adds the instances that were changed before an error to its text.
func withDone(err error, k instance.Key, done []string) error {
	if len(done) == 0 {
		return err
	}
	return fmt.Errorf("%w (failed at %s; already done: %s)", err, k.Address, strings.Join(done, ", "))
}

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

func readAdminBody(c *gin.Context) ([]byte, error) {
	if media, _, err := mime.ParseMediaType(c.GetHeader("Content-Type")); err != nil || media != "application/json" {
		return nil, badRequest("send Content-Type: application/json")
	}
	control := http.NewResponseController(c.Writer)
	_ = control.SetReadDeadline(time.Now().Add(lingerTotal)) // not supported: no deadline
	b, err := io.ReadAll(io.LimitReader(c.Request.Body, maxAdminBody+1))
	if err != nil {
		return nil, badRequest("the request body could not be read: %w", err)
	}
	if len(b) > maxAdminBody {
		return nil, badRequest("the request body is larger than %d bytes", maxAdminBody)
	}
	_ = control.SetReadDeadline(time.Time{})
	return b, nil
}

func parseChange(b []byte) (change, error) {
	var body struct {
		Type      *string         `json:"type"`
		Instance  *string         `json:"instance"`
		Instances json.RawMessage `json:"instances"`
		Ranks     *int            `json:"dp_size"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		return change{}, badRequest(`send {"type":"prefill"|"decode"|"both","instance":"host:port"}: %s`, instance.JSONError(err))
	}
	var ch change
	if body.Type == nil {
		return change{}, badRequest(`Invalid instance type. "type" is missing: use "prefill", "decode" or "both"`)
	}
	var err error
	if ch.role, err = instance.ParseRoles(*body.Type); err != nil {
		return change{}, badRequest("Invalid instance type. Use \"prefill\", \"decode\" or \"both\", not %q.", instance.Printable(*body.Type, 40))
	}
	if n := body.Ranks; n != nil {
		if *n < 1 || *n > instance.MaxRanks {
			return change{}, badRequest(`"dp_size" is %d: must be the number of data-parallel ranks, 1 to %d`, *n, instance.MaxRanks)
		}
		ch.ranks = *n
	}
	var list []string
	raw := bytes.TrimSpace(body.Instances)
	switch {
	case body.Instance != nil && len(raw) > 0:
		return change{}, badRequest(`send either "instance" or "instances"`)
	case body.Instance != nil:
		list = []string{*body.Instance}
	case len(raw) > 0 && raw[0] == '"':
		ch.plural, list = true, make([]string, 1)
		err = json.Unmarshal(raw, &list[0])
	case len(raw) > 0:
		ch.plural = true
		err = json.Unmarshal(raw, &list)
	}
	if err != nil || len(list) == 0 {
		return change{}, badRequest(`Invalid instance format. Set "instance":"host:port" or "instances":["host:port", ...]`)
	}
	if len(list) > maxPerRequest {
		return change{}, badRequest("more than %d instances in one request", maxPerRequest)
	}
	for _, s := range list {
		addr, err := instance.ParseAddress(s)
		if err != nil {
			what := "Invalid instance address."
			if !strings.Contains(s, ":") {
				what = "Invalid instance format."
			}
			return change{}, badRequest("%s %s", what, strings.TrimLeft(strings.TrimPrefix(err.Error(), instance.ErrAddress.Error()), ": "))
		}
		ch.keys = append(ch.keys, instance.Key{Role: ch.role, Address: addr})
	}
	return ch, nil
}

// pythonList formats addresses as the reference proxies do.
func pythonList(list []string) string {
	return "['" + strings.Join(list, "', '") + "']"
}

// writeJSON writes a JSON response without HTML escaping.
func writeJSON(c *gin.Context, status int, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		fail(c, http.StatusInternalServerError, openai.TypeInternal, err.Error())
		return
	}
	c.Data(status, "application/json", b.Bytes())
}
