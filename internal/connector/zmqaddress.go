package connector

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ZMQAddress is the address at which a MoRI-IO engine listens for its peers.
type ZMQAddress struct {
	Host              string // an address or a name; IPv6 without brackets
	Handshake, Notify int    // of data-parallel rank 0 and tensor-parallel rank 0
}

// ErrZMQAddress is wrapped by the errors of ParseZMQAddress.
var ErrZMQAddress = errors.New("zmq_address is not host:IP,handshake:PORT,notify:PORT")

// maxHost limits a host, so that an id with two hosts stays short.
const maxHost = 253

// ParseZMQAddress reads an address as engines do. The address becomes a part of an id, so
// it refuses an address that would make engines read that id differently.
func ParseZMQAddress(s string) (ZMQAddress, error) {
	var z ZMQAddress
	parts := strings.Split(s, ",")
	host, ok := strings.CutPrefix(parts[0], "host:")
	if len(parts) != 3 || !ok || host == "" || len(host) > maxHost || strings.ContainsFunc(host, notOfHost) || strings.Contains(host, "__") {
		return z, fmt.Errorf("%w: %q", ErrZMQAddress, instance.Printable(s, 128))
	}
	z.Host = host
	for i, name := range []string{"handshake:", "notify:"} {
		text, ok := strings.CutPrefix(parts[i+1], name)
		port, err := strconv.ParseUint(text, 10, 16)
		if !ok || err != nil || port == 0 {
			return ZMQAddress{}, fmt.Errorf("%w: %q", ErrZMQAddress, instance.Printable(s, 128))
		}
		*[]*int{&z.Handshake, &z.Notify}[i] = int(port)
	}
	return z, nil
}

func notOfHost(r rune) bool {
	return !strings.ContainsRune("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.:-_%", r)
}

// String returns the form that engines read.
func (z ZMQAddress) String() string {
	return "host:" + z.Host + ",handshake:" + strconv.Itoa(z.Handshake) + ",notify:" + strconv.Itoa(z.Notify)
}
