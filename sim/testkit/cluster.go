package testkit

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// Cluster is an etcd of several members, each in a process of its own.
type Cluster struct {
	t       testing.TB
	Members []*EtcdProcess
}

// StartCluster starts an etcd of n members and waits until they have a leader.
// The package's TestMain must call MaybeRunEtcd first.
func StartCluster(t testing.TB, n int, opts ...ProcessOption) *Cluster {
	t.Helper()
	return StartClusterFrom(t, n, nil, opts...)
}

// Member is what a member of a cluster has to know before it starts.
type Member struct {
	Name    string
	Dir     string // of its data, empty
	PeerURL string
	Cluster string // name=url of every member
}

// StartClusterFrom is StartCluster over data that prepare puts into the
// directory of each member beforehand.
func StartClusterFrom(t testing.TB, n int, prepare func(Member), opts ...ProcessOption) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Members: startMembers(t, n, prepare, opts)}
	c.Leader()
	return c
}

// startMembers starts the members of a cluster, which wait for each other.
func startMembers(t testing.TB, n int, prepare func(Member), opts []ProcessOption) []*EtcdProcess {
	t.Helper()
	var members []*EtcdProcess
	for i, peer := range quietPorts(t, n) {
		members = append(members, newMember(t, "m"+strconv.Itoa(i+1), peer, opts))
	}
	var group errgroup.Group
	for _, m := range members {
		m.spec.Cluster = initialCluster(members)
		if prepare != nil {
			prepare(Member{Name: m.spec.Name, Dir: m.dir(), PeerURL: "http://" + m.spec.Peer, Cluster: m.spec.Cluster})
		}
		group.Go(m.start)
	}
	require.NoError(t, group.Wait())
	return members
}

// initialCluster is name=url of each member.
func initialCluster(members []*EtcdProcess) string {
	var all []string
	for _, m := range members {
		all = append(all, m.spec.Name+"=http://"+m.spec.Peer)
	}
	return strings.Join(all, ",")
}

// quietPorts finds n free addresses on the loopback that stay free while no process
// listens there: their ports are not among those that the system hands out, to
// outgoing connections or to who listens on port 0, and other tests of this
// machine get others.
func quietPorts(t testing.TB, n int) []string {
	t.Helper()
	ports, err := fleet.FreePorts(n)
	require.NoError(t, err)
	var out []string
	for _, port := range ports {
		out = append(out, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	return out
}

// Endpoints lists the host:port of every member, running or not.
func (c *Cluster) Endpoints() []string {
	var out []string
	for _, m := range c.Members {
		out = append(out, m.Endpoint())
	}
	return out
}

// Client makes a client of all members, closed when the test ends.
func (c *Cluster) Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Client(t, c.Endpoints()...)
}

// Leader waits until the members that answer agree on a leader, and returns it.
func (c *Cluster) Leader() *EtcdProcess {
	c.t.Helper()
	var leader *EtcdProcess
	Eventually(c.t, startTimeout, func() error {
		leader = nil
		var id uint64
		for _, m := range c.Members {
			if m.process == nil {
				continue
			}
			s, err := status(c.t.Context(), m.Endpoint())
			switch {
			case err != nil:
				continue
			case s.Leader == 0, id != 0 && id != s.Leader:
				return errors.New("the members know no leader, or two")
			case s.Header.MemberId == s.Leader:
				leader = m
			}
			id = s.Leader
		}
		if leader == nil {
			return errors.New("the leader does not answer")
		}
		return nil
	})
	return leader
}

// Follower returns a member that is not the leader.
func (c *Cluster) Follower() *EtcdProcess {
	c.t.Helper()
	leader := c.Leader()
	for _, m := range c.Members {
		if m != leader && m.process != nil {
			return m
		}
	}
	c.t.Fatal("the cluster has no follower")
	return nil
}

// Replace adds a member that serves clients at a free port of host, and removes and kills old:
// so an operator replaces a machine. It returns when the new member serves.
func (c *Cluster) Replace(old *EtcdProcess, host string) *EtcdProcess {
	c.t.Helper()
	cli := c.Client(c.t)
	// change repeats a change of the members until it has been made. A member that has just lost
	// its leader may leave a proposal without an answer, so each attempt has its own time limit.
	change := func(made error, f func(context.Context) error) {
		Eventually(c.t, startTimeout, func() error {
			ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
			defer cancel()
			if err := f(ctx); !errors.Is(err, made) {
				return err
			}
			return nil
		})
	}
	peer := quietPorts(c.t, 1)[0]
	m := newMember(c.t, "m"+peer, peer, []ProcessOption{WithHost(host)})
	m.spec.Args = append(m.spec.Args, "--initial-cluster-state=existing")
	// A cluster refuses a change of its members until all of them have been connected for a
	// while.
	change(rpctypes.ErrPeerURLExist, func(ctx context.Context) error {
		_, err := cli.MemberAdd(ctx, []string{"http://" + peer})
		return err
	})
	m.spec.Cluster = initialCluster(append(c.Members, m))
	require.NoError(c.t, m.start())
	s, err := status(c.t.Context(), old.Endpoint())
	require.NoError(c.t, err)
	change(rpctypes.ErrMemberNotFound, func(ctx context.Context) error {
		_, err := cli.MemberRemove(ctx, s.Header.MemberId)
		return err
	})
	old.Kill()
	c.Members = append(c.Others(old), m)
	c.Leader()
	return m
}

// OutsideAddress returns an address of this machine that is not loopback, and skips the test if
// there is none.
func OutsideAddress(t testing.TB) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has loopback addresses only")
	return ""
}

// Others lists the members besides one.
func (c *Cluster) Others(m *EtcdProcess) []*EtcdProcess {
	return slices.DeleteFunc(slices.Clone(c.Members), func(o *EtcdProcess) bool { return o == m })
}

// status returns the status of the member at address.
func status(ctx context.Context, address string) (*clientv3.StatusResponse, error) {
	cli, err := quietClient(address)
	if err != nil {
		return nil, err
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return cli.Status(ctx, address)
}
