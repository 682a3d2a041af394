package netguard_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/internal/netguard"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	private := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, tc := range []struct {
		name  string
		allow []netip.Prefix
		ip    string
		ok    bool
	}{
		{"inside", private, "10.1.2.3", true},
		{"inside, v6", private, "fd12::1", true},
		{"inside, v4 written as v6", private, "::ffff:10.1.2.3", true},
		{"outside", private, "192.0.2.1", false},
		{"loopback is outside too", private, "127.0.0.1", false},
		{"no list, public", nil, "192.0.2.1", true},
		{"metadata service", nil, "169.254.169.254", false},
		{"metadata service in an allowed net", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, "169.254.169.254", false},
		{"metadata service as v6", nil, "::ffff:169.254.169.254", false},
		{"link-local v6", nil, "fe80::1", false},
		{"wildcard", nil, "0.0.0.0", false},
		{"multicast", nil, "224.0.0.1", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := netguard.New(tc.allow).Check(netip.MustParseAddr(tc.ip))
			if (err == nil) != tc.ok {
				t.Fatalf("Check(%s) = %v, want ok=%v", tc.ip, err, tc.ok)
			}
			if err != nil && !errors.Is(err, netguard.ErrForbidden) {
				t.Fatalf("error %v is not ErrForbidden", err)
			}
		})
	}
}

func TestControlStopsADialAfterResolution(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	_, port, _ := net.SplitHostPort(ln.Addr().String())

	only10 := netguard.New([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
	d := net.Dialer{Timeout: time.Second, Control: only10.Control}
	if c, err := d.DialContext(t.Context(), "tcp4", "localhost:"+port); !errors.Is(err, netguard.ErrForbidden) {
		if c != nil {
			_ = c.Close()
		}
		t.Fatalf("dial of a name that resolves outside the list: %v", err)
	}
	d.Control = netguard.New([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}).Control
	c, err := d.DialContext(t.Context(), "tcp4", "localhost:"+port)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}
