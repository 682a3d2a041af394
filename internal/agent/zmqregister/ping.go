package zmqregister

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// Errors of ParsePing.
var (
	// ErrPing is returned for a message that is no registration.
	ErrPing = errors.New("not a registration")
	// ErrHello is returned for a message that only announces a peer.
	ErrHello = errors.New("a greeting")
)

// Ping is the registration message of an instance.
type Ping struct {
	Key            instance.Key
	ZMQ            connector.ZMQAddress
	Mode           string // READ or WRITE
	DPSize, TPSize int    // at least 1
}

// maxRanks bounds a parallel size, far above real ones.
const maxRanks = 1 << 16

// fields has the members of a message that are texts or numbers.
type fields struct {
	text   map[string]string
	number map[string]int64
}

// ParsePing parses a message of either form. It ignores unknown members. Numbers may be
// strings, because engines accept them as such.
func ParsePing(payload []byte) (Ping, error) {
	f, err := parseFields(payload)
	if err != nil {
		return Ping{}, err
	}
	var p Ping
	role, address := f.text["type"], f.text["http_address"]
	switch role {
	case "HELLO":
		return Ping{}, ErrHello
	case "register": // up to 0.19
		role = f.text["role"]
		err = p.fromURL(f)
	default:
		p.Key.Address, err = parseAddress(address)
		if err == nil {
			p.ZMQ, err = connector.ParseZMQAddress(f.text["zmq_address"])
		}
	}
	if err != nil {
		return Ping{}, fmt.Errorf("%w: %w", ErrPing, err)
	}
	if p.Key.Role = map[string]instance.Role{"P": instance.Prefill, "D": instance.Decode}[role]; p.Key.Role == "" {
		return Ping{}, fmt.Errorf("%w: its role is %q and neither P nor D", ErrPing, instance.Printable(role, 32))
	}
	switch p.Mode = strings.ToUpper(f.text["transfer_mode"]); p.Mode {
	case "READ", "WRITE":
	default:
		return Ping{}, fmt.Errorf("%w: its transfer mode is %q and neither READ nor WRITE", ErrPing, instance.Printable(p.Mode, 32))
	}
	for name, size := range map[string]*int{"dp_size": &p.DPSize, "tp_size": &p.TPSize} {
		n, ok := f.number[name]
		if !ok || n < 1 || n > maxRanks {
			return Ping{}, fmt.Errorf("%w: its %s is not a size", ErrPing, name)
		}
		*size = int(n)
	}
	return p, nil
}

// fromURL reads the older form, which has the URL of a route and two ports.
func (p *Ping) fromURL(f fields) error {
	u, err := url.Parse(f.text["request_address"])
	if err != nil || u.Scheme != "http" || u.User != nil {
		return fmt.Errorf("%w: request_address is not an http URL", ErrPing)
	}
	if p.Key.Address, err = parseAddress(u.Host); err != nil {
		return err
	}
	z := fmt.Sprintf("host:%s,handshake:%d,notify:%d", u.Hostname(), f.number["handshake_port"], f.number["notify_port"])
	p.ZMQ, err = connector.ParseZMQAddress(z)
	return err
}

// parseAddress also accepts IPv6 without brackets, as engines send it.
func parseAddress(s string) (string, error) {
	if at := strings.LastIndexByte(s, ':'); at > 0 && strings.Count(s, ":") > 1 && !strings.Contains(s, "[") {
		s = net.JoinHostPort(s[:at], s[at+1:])
	}
	return instance.ParseAddress(s)
}

// parseFields reads one msgpack map. It skips members of other types and refuses trailing bytes.
func parseFields(b []byte) (fields, error) {
	f := fields{text: map[string]string{}, number: map[string]int64{}}
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return f, fmt.Errorf("%w: not a msgpack map", ErrPing)
	}
	for range n { // a size that is too large fails at the end of b
		var name []byte
		if name, b, err = msgp.ReadMapKeyZC(b); err == nil {
			b, err = f.read(string(name), b)
		}
		if err != nil {
			return f, fmt.Errorf("%w: %w", ErrPing, err)
		}
	}
	if len(b) > 0 {
		return f, fmt.Errorf("%w: trailing bytes after the map", ErrPing)
	}
	return f, nil
}

func (f *fields) read(name string, b []byte) (rest []byte, err error) {
	switch msgp.NextType(b) {
	case msgp.StrType:
		f.text[name], rest, err = msgp.ReadStringBytes(b)
		if n, bad := strconv.ParseUint(f.text[name], 10, 32); err == nil && bad == nil {
			f.number[name] = int64(n)
		}
	case msgp.IntType, msgp.UintType:
		f.number[name], rest, err = msgp.ReadInt64Bytes(b)
	default:
		rest, err = msgp.Skip(b)
	}
	return rest, err
}
