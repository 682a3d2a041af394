package connector

import (
	"net"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// WithHost replaces remote_host in transfer params by the host of an instance. It is
// for engines that name an address which other machines cannot reach (localhost, 0.0.0.0).
// All other bytes stay, and parameters without remote_host stay as they are.
func WithHost(params []byte, in *instance.Instance) []byte {
	host, _, err := net.SplitHostPort(in.Address)
	if err != nil {
		return params
	}
	return jsonscan.Replace(params, "remote_host", toJSON(host))
}
