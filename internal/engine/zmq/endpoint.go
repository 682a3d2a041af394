package zmq

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ErrEndpoint is wrapped by the errors of ParseEndpoint.
var ErrEndpoint = errors.New("bad ZeroMQ endpoint")

// ParseEndpoint returns the host:port of tcp://host:port. The host * means all addresses of the
// machine, and is returned as "". An IPv6 address must be in brackets. Port 0 is allowed, for
// listeners.
func ParseEndpoint(endpoint string) (address string, err error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("%w %q: want tcp://host:port", ErrEndpoint, endpoint)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("%w %q: %w", ErrEndpoint, endpoint, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("%w %q: bad port %d", ErrEndpoint, endpoint, n)
	}
	switch host {
	case "":
		return "", fmt.Errorf("%w %q: no host; * is every address", ErrEndpoint, endpoint)
	case "*":
		host = ""
	}
	return net.JoinHostPort(host, port), nil
}
