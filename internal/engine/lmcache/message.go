package lmcache

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// ErrMessage is wrapped by the errors of ParseNotification.
var ErrMessage = errors.New("not a notification of LMCache")

// maxID bounds a request id, in bytes. Ours have 32.
const maxID = 256

// typeNotification is the tag of a notification in msgspec's union. The other messages of the union are not
// sent to proxies.
const typeNotification = "ProxyNotif"

// ParseNotification parses the message of a prefill rank: a msgpack map {"type":
// "ProxyNotif", "req_id": "..."} (PDMsgBase in LMCache's pd_backend.py). Unknown members
// are ignored.
func ParseNotification(frame []byte) (id string, err error) {
	var kind string
	members, b, err := msgp.ReadMapHeaderBytes(frame)
	for range members { // too large a number fails at the end of the bytes
		if err != nil {
			break
		}
		var name []byte
		if name, b, err = msgp.ReadMapKeyZC(b); err != nil {
			break
		}
		switch string(name) {
		case "type":
			kind, b, err = msgp.ReadStringBytes(b)
		case "req_id":
			id, b, err = msgp.ReadStringBytes(b)
		default:
			b, err = msgp.Skip(b)
		}
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrMessage, err)
	case len(b) > 0:
		return "", fmt.Errorf("%w: trailing data after the map", ErrMessage)
	case kind != typeNotification:
		return "", fmt.Errorf("%w: type %.40q", ErrMessage, kind)
	case id == "" || len(id) > maxID:
		return "", fmt.Errorf("%w: req_id of %d bytes", ErrMessage, len(id))
	}
	return id, nil
}
