package netguard_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/transport/netguard"
	"github.com/pdmesh/pdmesh/sim/testkit"
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
		{"metadata service of AWS, v6", nil, "fd00:ec2::254", false},
		{"metadata service of AWS, v6, in an allowed net", private, "fd00:ec2::254", false},
		{"metadata service of AWS, v6, with a zone", nil, "fd00:ec2::254%eth0", false},
		{"metadata service of Google, v6", nil, "fd20:ce::254", false},
		{"metadata service of Alibaba", nil, "100.100.100.200", false},
		{"metadata service of Alibaba as v6", nil, "::ffff:100.100.100.200", false},
		{"its neighbour", nil, "100.100.100.201", true},
		{"metadata service through NAT64", nil, "64:ff9b::169.254.169.254", false},
		{"metadata service through NAT64, allowed", []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}, "64:ff9b::a9fe:a9fe", false},
		{"metadata service of Alibaba through NAT64", nil, "64:ff9b::100.100.100.200", false},
		{"metadata service through a local NAT64", nil, "64:ff9b:1::169.254.169.254", false},
		{"metadata service through a local NAT64, behind a prefix of 48", nil, "64:ff9b:1:a9fe:a9:fe00::", false},
		{"metadata service through 6to4", nil, "2002:a9fe:a9fe::1", false},
		{"metadata service, IPv4-compatible", nil, "::169.254.169.254", false},
		{"metadata service, IPv4-translated", nil, "::ffff:0:169.254.169.254", false},
		{"another through a local NAT64", nil, "64:ff9b:1::10.0.0.1", true},
		{"another through NAT64", nil, "64:ff9b::192.0.2.1", true},
		{"another through NAT64 is its own network's", private, "64:ff9b::10.0.0.1", false},
		{"loopback v6", nil, "::1", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := netguard.New(tc.allow).Check(netip.MustParseAddr(tc.ip))
			require.Equal(t, tc.ok, err == nil, "Check(%s) = %v, want ok", tc.ip, err)
			require.False(t, err != nil && !errors.Is(err, netguard.ErrForbidden), "error %v is not ErrForbidden", err)
		})
	}
}

func TestControl_StopsDialAfterResolution(t *testing.T) {
	t.Parallel()
	ln := testkit.Listen(t)
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
	require.NoError(t, err)
	_ = c.Close()
}
