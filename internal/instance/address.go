package instance

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ErrAddress is wrapped by every error of ParseAddress.
var ErrAddress = errors.New("invalid instance address")

// ParseAddress checks an instance address and returns its canonical spelling,
// which is also the last part of its key in etcd: host:port, IPv6 as
// [addr]:port, host names in lower case, "localhost" as 127.0.0.1. Wildcard
// addresses, zones and URLs are refused with a hint.
func ParseAddress(s string) (string, error) {
	if s == "" {
		return "", fmt.Errorf("%w: it is empty; must be host:port", ErrAddress)
	}
	if len(s) > 300 {
		return "", fmt.Errorf("%w: longer than 300 bytes", ErrAddress)
	}
	if strings.Contains(s, "://") {
		return "", fmt.Errorf("%w %q: must be host:port without a scheme", ErrAddress, Printable(s, 80))
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		if strings.Count(s, ":") > 1 && !strings.HasPrefix(s, "[") {
			return "", fmt.Errorf("%w %q: write IPv6 as [address]:port", ErrAddress, Printable(s, 80))
		}
		return "", fmt.Errorf("%w %q: must be host:port", ErrAddress, Printable(s, 80))
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || port[0] == '+' {
		return "", fmt.Errorf("%w %q: the port must be a number from 1 to 65535", ErrAddress, Printable(s, 80))
	}
	port = strconv.FormatUint(n, 10)
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" {
			return "", fmt.Errorf("%w %q: an address with a zone means something on one machine only", ErrAddress, Printable(s, 80))
		}
		ip = ip.Unmap()
		if ip.IsUnspecified() {
			return "", fmt.Errorf("%w %q: a wildcard address names no machine; set the address by which other machines reach it", ErrAddress, Printable(s, 80))
		}
		if ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return "", fmt.Errorf("%w %q: a multicast or broadcast address", ErrAddress, Printable(s, 80))
		}
		return net.JoinHostPort(ip.String(), port), nil
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" {
		return "127.0.0.1:" + port, nil
	}
	if err := checkHostname(host); err != nil {
		return "", fmt.Errorf("%w %q: %w", ErrAddress, Printable(s, 80), err)
	}
	return host + ":" + port, nil
}

var (
	errHostEmpty   = errors.New("the host is missing")
	errHostChars   = errors.New("a host name has letters, digits, '-', '_' and '.' only")
	errHostNumeric = errors.New("looks like an IPv4 address but is not one")
)

func checkHostname(host string) error {
	if host == "" {
		return errHostEmpty
	}
	if len(host) > 253 {
		return errHostChars
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return errHostChars
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return errHostChars
			}
		}
	}
	// A last label of digits only is no host name: resolvers read such names as
	// odd spellings of IPv4 addresses (0177.1, 2130706433).
	last := labels[len(labels)-1]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return errHostNumeric
	}
	return nil
}

// LocalAddress returns the address at which this machine reaches a listener on host, which may be a
// wildcard.
func LocalAddress(host string, port int) string {
	switch ip, err := netip.ParseAddr(host); {
	case host == "", err == nil && ip.IsUnspecified() && ip.Is4():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// AllLoopback reports whether IsLoopback is true of all addresses.
func AllLoopback(addresses []string) bool {
	return !slices.ContainsFunc(addresses, func(a string) bool { return !IsLoopback(a) })
}

// IsLoopback reports whether a canonical address is a loopback IP literal.
func IsLoopback(address string) bool {
	ap, err := netip.ParseAddrPort(address)
	return err == nil && ap.Addr().IsLoopback()
}
