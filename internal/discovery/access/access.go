// Package access parses the settings by which all programs reach etcd: endpoints, TLS files and a
// password file.
package access

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// ErrEndpoint is wrapped when an endpoint is not usable as written.
var ErrEndpoint = errors.New("invalid etcd endpoint")

// ParseEndpoints returns the addresses of endpoints that are written as host:port,
// http://host:port or https://host:port, each once, and whether https:// was written.
func ParseEndpoints(list []string) (addresses []string, secure bool, err error) {
	var errs []error
	plain := false
	for _, s := range list {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		scheme, rest, ok := strings.Cut(s, "://")
		if !ok {
			scheme, rest = "", s
		}
		switch scheme {
		case "https":
			secure = true
		case "http":
			plain = true
		case "":
		default:
			errs = append(errs, fmt.Errorf("%w %q: write host:port or https://host:port", ErrEndpoint, instance.Printable(s, 80)))
			continue
		}
		address, err := instance.ParseAddress(strings.TrimSuffix(rest, "/"))
		if err != nil {
			errs = append(errs, fmt.Errorf("%w%s", ErrEndpoint, strings.TrimPrefix(err.Error(), instance.ErrAddress.Error())))
			continue
		}
		if !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	if plain && secure {
		errs = append(errs, errors.New("endpoints with http:// and with https:// in one list: all members of a cluster are reached in one way"))
	}
	return addresses, secure, errors.Join(errs...)
}

// Written returns endpoints in the form that ParseEndpoints accepts.
func Written(addresses []string, secure bool) []string {
	if !secure {
		return addresses
	}
	out := make([]string, len(addresses))
	for i, a := range addresses {
		out[i] = "https://" + a
	}
	return out
}

// TLS has the settings of TLS with etcd.
type TLS struct {
	On    bool // https:// was written; Files imply it
	Files certs.Files
}

// Used reports whether etcd is reached over TLS.
func (t TLS) Used() bool { return t.On || !t.Files.None() }

// Open opens the files. It returns nil, nil if etcd is reached without TLS.
func (t TLS) Open(log logrus.FieldLogger) (*certs.Source, error) {
	if !t.Used() {
		return nil, nil
	}
	s, err := certs.Open(certs.Options{Use: certs.UseEtcd, Files: t.Files, Log: log})
	if err != nil {
		return nil, fmt.Errorf("certificates for etcd: %w", err)
	}
	return s, nil
}

// ConfigOf returns the TLS function of etcd.Config for a source; nil for none.
func ConfigOf(s *certs.Source) func() *tls.Config {
	if s == nil {
		return nil
	}
	return s.Client
}

// Password returns the password for etcd: the given one, or that in a file; path is "" if there is
// none. If both are given, it returns the given one with an error.
func Password(given, path string) (string, error) {
	switch {
	case path == "":
		return given, nil
	case given != "":
		return given, errors.New("excludes --etcd-password: remove one of the two")
	}
	return ReadPassword(path)
}

// ReadPassword reads a password from the first line of a file.
func ReadPassword(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	// Editors on Windows write the byte order mark.
	if line = strings.TrimSpace(strings.TrimPrefix(line, "\ufeff")); line == "" {
		return "", fmt.Errorf("%s: its first line is empty", path)
	}
	return line, nil
}
