package lmcache

import (
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// ErrMessage is wrapped by the errors of ParseNotification.
var ErrMessage = errors.New("no notification of LMCache")

// maxID bounds a request id, in bytes. Ours have 32.
const maxID = 256

// typeNotification is the tag of msgspec's union for a notification; the other
// messages of the union never come to a proxy.
const typeNotification = "ProxyNotif"

// ParseNotification reads what a prefill rank sends: a msgpack map {"type":
// "ProxyNotif", "req_id": "..."} (PDMsgBase in LMCache's pd_backend.py). Members that
// are not known are no matter.
func ParseNotification(frame []byte) (id string, err error) {
	var m struct {
		Type string `msgpack:"type"`
		ID   string `msgpack:"req_id"`
	}
	if err := msgpack.Unmarshal(frame, &m); err != nil {
		return "", fmt.Errorf("%w: %w", ErrMessage, err)
	}
	switch {
	case m.Type != typeNotification:
		return "", fmt.Errorf("%w: type %.40q", ErrMessage, m.Type)
	case m.ID == "" || len(m.ID) > maxID:
		return "", fmt.Errorf("%w: req_id of %d bytes", ErrMessage, len(m.ID))
	}
	return m.ID, nil
}

// AppendNotification renders a notification, as an engine sends it.
func AppendNotification(id string) ([]byte, error) {
	return msgpack.Marshal(struct {
		Type string `msgpack:"type"`
		ID   string `msgpack:"req_id"`
	}{typeNotification, id})
}
