package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
	"github.com/pdmesh/pdmesh/internal/transport/http1"
)

// complaints collects errors about settings. sources has the source of each value.
type complaints struct {
	sources settings.Sources
	errs    []error
}

// bad adds an error about one setting.
func (c *complaints) bad(name, format string, args ...any) {
	c.errs = append(c.errs, c.sources.Complain(name, fmt.Errorf(format, args...)))
}

// err returns an error with a line for each complaint, or nil.
func (c *complaints) err() error { return errors.Join(c.errs...) }

// pair requires that a certificate and its key are both set, or neither. Their settings are called
// NAME-cert and NAME-key.
func (c *complaints) pair(name string, f certs.Files) {
	switch {
	case f.Cert != "" && f.Key == "":
		c.bad(name+"-cert", "missing key: set --%s-key", name)
	case f.Cert == "" && f.Key != "":
		c.bad(name+"-key", "missing certificate: set --%s-cert", name)
	}
}

// anyTime is the range of times without a specific range.
const anyTime = "1ms to 168h"

// checkHost checks the host of a listen address. Unlike that of an instance, it may be a wildcard.
func checkHost(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() {
			return nil
		}
	} else if strings.Contains(host, ":") || strings.HasPrefix(host, "[") {
		return fmt.Errorf("invalid host %q: must be an IP address or a name, without a port", instance.Printable(host, 80))
	}
	if _, err := instance.ParseAddress(net.JoinHostPort(host, "1")); err != nil {
		return fmt.Errorf("invalid host %q: must be an IP address or a name", instance.Printable(host, 80))
	}
	return nil
}

// isToken reports whether s can be the name of a header (RFC 9110, 5.6.2).
func isToken(s string) bool {
	return s != "" && len(s) <= 200 && !slices.ContainsFunc([]byte(s), func(c byte) bool { return !http1.IsToken(c) })
}

func checkListen(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q: must be host:port", instance.Printable(s, 80))
	}
	if err := checkHost(host); err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q: the port must be a number from 1 to 65535", instance.Printable(s, 80))
	}
	return nil
}
