package connector

import (
	"net"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
)

// WithHost gives hand-over parameters with the host of an instance in remote_host, for
// engines that know themselves by an address which others cannot reach (localhost,
// 0.0.0.0). All other bytes stay, and so do parameters without that member.
func WithHost(params []byte, in *instance.Instance) []byte {
	host, _, err := net.SplitHostPort(in.Address)
	if err != nil {
		return params
	}
	return jsonscan.Replace(params, "remote_host", quote(host))
}
