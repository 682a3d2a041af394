package embedetcd

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
)

// The addresses of both ends, and whether there are users, decide which calls are accepted.
func TestAllowedCallers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, listen, from, to string
		users                  bool
		refused                string
	}{
		{"another machine, users", "10.0.0.1:2379", "10.0.0.2:5000", "10.0.0.1:2379", true, ""},
		{"another machine, no users", "10.0.0.1:2379", "10.0.0.2:5000", "10.0.0.1:2379", false, "auth init"},
		{"this machine, no users", "10.0.0.1:2379", "10.0.0.1:5000", "10.0.0.1:2379", false, ""},
		{"loopback", "127.0.0.1:2379", "127.0.0.1:5000", "127.0.0.1:2379", false, ""},
		{"loopback by another number", "127.0.0.1:2379", "127.0.0.2:5000", "127.0.0.1:2379", false, ""},
		{"IPv6, another machine", "[2001:db8::1]:2379", "[2001:db8::2]:5000", "[2001:db8::1]:2379", false, "auth init"},
		{"IPv6, this machine", "[2001:db8::1]:2379", "[2001:db8::1]:5000", "[2001:db8::1]:2379", false, ""},
		{"the port that etcd wants", "127.0.0.1:2379", "127.0.0.1:5000", "127.0.0.1:4000", true, "use https://127.0.0.1:2379"},
	} {
		addr := func(s string) net.Addr {
			a, err := net.ResolveTCPAddr("tcp", s)
			require.NoError(t, err)
			return a
		}
		p := &securePort{address: tc.listen, log: etcd.LogOrDiscard(nil), hasUsers: func() bool { return tc.users }}
		err := p.check(peer.NewContext(t.Context(), &peer.Peer{Addr: addr(tc.from), LocalAddr: addr(tc.to)}))
		if (err != nil) != (tc.refused != "") || tc.refused != "" && !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: %v", tc.name, err)
		}
		assert.False(t, err != nil && status.Code(err) != codes.FailedPrecondition,
			"%s: %v, which clients may take for an etcd that is away", tc.name, err)
	}
	assert.Error(t, (&securePort{}).check(t.Context()), "a call from nowhere is let through")
}
