// Package netguard decides which addresses from etcd the proxy may connect to. Without it, any writer of
// an instance could receive prompts, or reach services outside the fleet. The check runs at dial time,
// after name resolution, so that a name cannot resolve to another address later.
package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// ErrForbidden is wrapped by every error of Check.
var ErrForbidden = errors.New("address not allowed")

// Policy is a set of networks. It is immutable and safe for concurrent use.
type Policy struct {
	allow []netip.Prefix
}

// New returns a Policy that allows exactly these networks. Without any, it allows every address except
// those that Check always refuses.
func New(allow []netip.Prefix) Policy { return Policy{allow: allow} }

// Check returns an error if the address must not be connected to. It always refuses link-local addresses
// (which include most cloud metadata services), metadata services at other addresses, wildcards and
// multicast, and the IPv6 addresses that a translator maps to such an IPv4 address.
func (p Policy) Check(ip netip.Addr) error {
	ip = ip.Unmap()
	if ip.IsUnspecified() || ip.IsMulticast() {
		return fmt.Errorf("%w: %s is a wildcard or multicast", ErrForbidden, ip)
	}
	if slices.ContainsFunc(append(embedded(ip), ip), isMetadata) {
		return fmt.Errorf("%w: %s is link-local or a cloud's metadata service", ErrForbidden, ip)
	}
	if len(p.allow) == 0 || slices.ContainsFunc(p.allow, func(n netip.Prefix) bool { return n.Contains(ip) }) {
		return nil
	}
	return fmt.Errorf("%w: %s is outside --instance-allow", ErrForbidden, ip)
}

// isMetadata reports whether ip is link-local or a metadata service at another address.
func isMetadata(ip netip.Addr) bool {
	switch ip.WithZone("").String() {
	case "fd00:ec2::254", // AWS
		"fd20:ce::254",    // Google Cloud
		"100.100.100.200": // Alibaba Cloud
		return true
	}
	return ip.IsLinkLocalUnicast()
}

// embedded returns the IPv4 addresses that a translator may map an IPv6 address to. If
// the translator's prefix length is unknown, it returns one address for each length.
func embedded(ip netip.Addr) []netip.Addr {
	if !ip.Is6() || ip.IsLoopback() {
		return nil
	}
	b := ip.As16()
	last := netip.AddrFrom4([4]byte(b[12:]))
	switch {
	case within(ip, "64:ff9b::/96"), // NAT64 (RFC 6052)
		within(ip, "::/96"),           // IPv4-compatible (RFC 4291, 2.5.5.1)
		within(ip, "::ffff:0:0:0/96"): // IPv4-translated (RFC 2765)
		return []netip.Addr{last}
	case within(ip, "64:ff9b:1::/48"): // local-use NAT64 (RFC 8215), with a prefix of 48, 56, 64 or 96 bits
		return []netip.Addr{
			last,
			netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}), // octet 8 is no part of any (RFC 6052, 2.2)
			netip.AddrFrom4([4]byte{b[7], b[9], b[10], b[11]}),
			netip.AddrFrom4([4]byte(b[9:13])),
		}
	case within(ip, "2002::/16"): // 6to4 (RFC 3056)
		return []netip.Addr{netip.AddrFrom4([4]byte(b[2:6]))}
	}
	return nil
}

func within(ip netip.Addr, network string) bool {
	return netip.MustParsePrefix(network).Contains(ip.WithZone(""))
}

// Control runs Check as a net.Dialer.Control.
func (p Policy) Control(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return p.Check(ap.Addr())
}
