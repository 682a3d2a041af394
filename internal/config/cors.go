package config

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// JSONList is a list of names that is written as vLLM's options have it.
type JSONList []string

// parseJSONList takes ["a","b"], and a,b as other lists are written. An empty text is an
// empty list.
func parseJSONList(s string) (JSONList, error) {
	list := JSONList{}
	switch s = strings.TrimSpace(s); {
	case s == "":
		return nil, nil
	case s[0] == '[':
		if err := json.Unmarshal([]byte(s), &list); err != nil {
			return nil, fmt.Errorf("%w %q: give a list such as [\"*\"]: %w", errValue, s, err)
		}
	default:
		list = strings.Split(s, ",")
	}
	for i := range list {
		if list[i] = strings.TrimSpace(list[i]); list[i] == "" {
			return nil, fmt.Errorf("%w %q: an item of the list is empty", errValue, s)
		}
	}
	return list, nil
}

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
	for name, list := range map[string]JSONList{"allowed-methods": p.AllowedMethods, "allowed-headers": p.AllowedHeaders} {
		for _, item := range list {
			if !isToken(item) {
				bad(name, "%q is no name", instance.Printable(item, 80))
			}
		}
	}
}
