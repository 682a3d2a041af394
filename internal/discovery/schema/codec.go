package schema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// RejectedError is the reason why a value in etcd cannot be used. Its text is safe to
// print: quoted values are escaped.
type RejectedError struct{ Reason string }

func (e *RejectedError) Error() string { return e.Reason }

// Rejectf returns a *RejectedError. Callers must pass untrusted arguments through Quote.
func Rejectf(format string, args ...any) error {
	return &RejectedError{Reason: fmt.Sprintf(format, args...)}
}

// ReasonOf returns the text of a rejection, or of any other error in printable form.
func ReasonOf(err error) string {
	if r, ok := errors.AsType[*RejectedError](err); ok {
		return r.Reason
	}
	return instance.Printable(err.Error(), 300)
}

// ErrTooLarge is wrapped when a value would be larger than the layout allows.
var ErrTooLarge = errors.New("value too large")

// EncodeRecord returns the JSON value of an instance's key, at most MaxRecordBytes. Models that do
// not fit are left out, see instance.Record.FitModels. A record without a version gets the current
// one. It returns a *RejectedError for a record that DecodeRecord would reject.
func EncodeRecord(rec instance.Record) ([]byte, error) {
	rec.V = cmp.Or(rec.V, instance.RecordVersion)
	if err := checkRecord(&rec); err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	rec.FitModels()
	return Encode(rec)
}

// Encode returns the JSON of a value, at most MaxRecordBytes; otherwise the error wraps ErrTooLarge.
func Encode(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode value: %w", err)
	}
	out := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if len(out) > instance.MaxRecordBytes {
		return nil, fmt.Errorf("encode value: %w: %d bytes, the limit is %d", ErrTooLarge, len(out), instance.MaxRecordBytes)
	}
	return out, nil
}

// DecodeRecord reads the value of an instance's key. An empty value, or plain
// text that is the host:port of the key or a URL of it, is a bare
// registration. Defaults are filled in: version 1, scheme http, state ready,
// role and address of the key. Every error is a *RejectedError.
func DecodeRecord(k instance.Key, value []byte) (rec instance.Record, bare bool, err error) {
	text, err := valueText(value)
	if err != nil {
		return instance.Record{}, false, err
	}
	switch {
	case text == "":
		bare = true
	case text[0] == '{':
		if err := decodeObject(text, &rec); err != nil {
			return instance.Record{}, false, err
		}
	default:
		scheme, err := bareAddress(k, text)
		if err != nil {
			return instance.Record{}, false, err
		}
		bare, rec.Scheme = true, scheme
	}
	if err := FillRecord(k, &rec); err != nil {
		return instance.Record{}, false, err
	}
	return rec, bare, nil
}

// valueText checks the size and the encoding of a value, and returns it without surrounding spaces.
func valueText(value []byte) (string, error) {
	if len(value) > instance.MaxRecordBytes {
		return "", Rejectf("the value has %d bytes; the limit is %d", len(value), instance.MaxRecordBytes)
	}
	if !utf8.Valid(value) {
		return "", Rejectf("the value is binary data, not text")
	}
	return strings.TrimSpace(string(value)), nil
}

// decodeValue reads a value that must be one JSON object; otherwise is the reason to reject any other
// text.
func decodeValue(value []byte, into any, otherwise string) error {
	text, err := valueText(value)
	switch {
	case err != nil:
		return err
	case text == "" || text[0] != '{':
		return Rejectf("%s", otherwise)
	}
	return decodeObject(text, into)
}

// decodeObject reads one JSON object and nothing after it. It ignores unknown fields, which may be
// from another program or a newer version.
func decodeObject(text string, into any) error {
	err := json.Unmarshal([]byte(text), into)
	var typeErr *json.UnmarshalTypeError
	var syntaxErr *json.SyntaxError
	var timeErr *time.ParseError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &typeErr):
		return Rejectf("field %s", instance.JSONError(err))
	case errors.As(err, &syntaxErr):
		return Rejectf("broken JSON at byte %d: %s", syntaxErr.Offset, instance.Printable(syntaxErr.Error(), 120))
	case errors.As(err, &timeErr):
		return Rejectf("a time is not in the form 2006-01-02T15:04:05Z: %s", instance.Printable(timeErr.Value, 60))
	default:
		return Rejectf("broken JSON: %s", instance.Printable(err.Error(), 120))
	}
}

// bareAddress accepts "host:port" and "http(s)://host:port" if they name the address of the key.
func bareAddress(k instance.Key, text string) (scheme string, err error) {
	address, scheme := text, ""
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" ||
			u.User != nil || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "" {
			return "", Rejectf("the text %s is no URL of the form http://host:port", Quote(text, 80))
		}
		address, scheme = u.Host, u.Scheme
	}
	canonical, err := instance.ParseAddress(address)
	if err != nil {
		return "", Rejectf("the value must be empty, host:port, http://host:port or a JSON object, not the text %s", Quote(text, 80))
	}
	if canonical != k.Address {
		return "", Rejectf("the value names %s but the key names %s", canonical, k.Address)
	}
	return scheme, nil
}

// FillRecord checks a decoded record against its key and fills in defaults.
func FillRecord(k instance.Key, rec *instance.Record) error {
	rec.V = cmp.Or(rec.V, instance.RecordVersion)
	if rec.Role != "" && rec.Role != k.Role {
		return Rejectf("the record has role %s but the key has %s", Quote(string(rec.Role), 40), k.Role)
	}
	rec.Role = k.Role
	if rec.Address == "" {
		rec.Address = k.Address
	} else {
		canonical, err := instance.ParseAddress(rec.Address)
		if err != nil {
			return Rejectf("field \"address\": %s", err)
		}
		// The host may be spelled in another way (a name, the public address of a NAT), but another
		// port is another server.
		if portOf(canonical) != portOf(k.Address) {
			return Rejectf("field \"address\" is %s but the key says port %s", canonical, portOf(k.Address))
		}
		rec.Address = canonical
	}
	rec.Scheme = cmp.Or(rec.Scheme, "http")
	rec.State = cmp.Or(rec.State, instance.Ready)
	return checkRecord(rec)
}

// checkRecord checks the fields that do not depend on the key.
func checkRecord(rec *instance.Record) error {
	if rec.V < 0 {
		return Rejectf("field \"v\" is negative")
	}
	switch rec.Scheme {
	case "", "http", "https":
	default:
		return Rejectf("field \"scheme\" is %s; use http or https", Quote(rec.Scheme, 40))
	}
	switch rec.State {
	case "", instance.Starting, instance.Ready, instance.Draining, instance.Down:
	default:
		return Rejectf("field \"state\" is %s; use starting, ready, draining or down", Quote(string(rec.State), 40))
	}
	if rec.Weight != nil && *rec.Weight < 0 {
		return Rejectf("field \"weight\" is negative")
	}
	for _, f := range []struct {
		name  string
		value int
	}{
		{"dp_size", rec.DPSize},
		{"tp_size", rec.TPSize},
		{"pp_size", rec.PPSize},
		{"block_size", rec.BlockSize},
		{"max_model_len", rec.MaxModelLen},
	} {
		if f.value < 0 {
			return Rejectf("field %q is negative", f.name)
		}
	}
	for i, m := range rec.Models {
		if m == "" {
			return Rejectf("models[%d] is empty", i)
		}
	}
	for what, ports := range rec.Ports {
		for _, p := range ports {
			if p < 1 || p > 65535 {
				return Rejectf("ports[%s] has %d, which is not a port", Quote(what, 40), p)
			}
		}
	}
	return nil
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

// Quote returns untrusted text in quotes and in printable form, for a message.
func Quote(s string, limit int) string { return `"` + instance.Printable(s, limit) + `"` }
