package config

import (
	"net/url"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/settings"
)

// checkCORS looks at what would never match an origin, or could not stand in a header.
func (p *Proxy) checkCORS(bad complaint) {
	for _, o := range p.AllowedOrigins {
		u, err := url.Parse(o)
		switch {
		case o == "*", o == "null":
		case err != nil, u.Scheme == "", u.Host == "", u.Scheme+"://"+u.Host != o:
			bad("allowed-origins", "%q is no origin; write https://host or https://host:port, without a path or a slash at the end", instance.Printable(o, 80))
		}
	}
	for name, list := range map[string]settings.JSONList{"allowed-methods": p.AllowedMethods, "allowed-headers": p.AllowedHeaders} {
		for _, item := range list {
			if !isToken(item) {
				bad(name, "%q is no name", instance.Printable(item, 80))
			}
		}
	}
}
