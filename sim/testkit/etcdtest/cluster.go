package etcdtest

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// Cluster is an etcd of several members, each in its own process.
type Cluster struct {
	t       testing.TB
	Members []*Server
}

// StartCluster starts an etcd of n members and waits until they have a leader.
func StartCluster(t testing.TB, n int, opts ...Option) *Cluster {
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
func StartClusterFrom(t testing.TB, n int, prepare func(Member), opts ...Option) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	var all []string
	for i := range n {
		name, peer := "m"+strconv.Itoa(i+1), testkit.FreePort(t)
		all = append(all, name+"=http://"+peer)
		c.Members = append(c.Members, newMember(t, memberConfig{name: name, peer: peer}, opts))
	}
	var starting errgroup.Group // members wait for each other
	for _, m := range c.Members {
		m.cfg.cluster = strings.Join(all, ",")
		if prepare != nil {
			prepare(Member{Name: m.cfg.name, Dir: m.cfg.dir, PeerURL: "http://" + m.cfg.peer, Cluster: m.cfg.cluster})
		}
		starting.Go(m.launch)
	}
	require.NoError(t, starting.Wait())
	c.Leader()
	return c
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
func (c *Cluster) Leader() *Server {
	c.t.Helper()
	var leader *Server
	testkit.Eventually(c.t, startTimeout, func() error {
		leader = nil
		var id uint64
		for _, m := range c.Members {
			s, err := c.status(m)
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
func (c *Cluster) Follower() *Server {
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
func (c *Cluster) Replace(old *Server, host string) *Server {
	c.t.Helper()
	cli := c.Client(c.t)
	// change repeats a change of the members until it has been made. A member that has just lost
	// its leader may leave a proposal without an answer, so each attempt has its own time limit.
	change := func(made error, f func(context.Context) error) {
		testkit.Eventually(c.t, startTimeout, func() error {
			ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
			defer cancel()
			if err := f(ctx); !errors.Is(err, made) {
				return err
			}
			return nil
		})
	}
	peer := testkit.FreePort(c.t)
	m := newMember(c.t, memberConfig{name: "m" + peer, peer: peer},
		[]Option{WithHost(host), WithArgs("--initial-cluster-state", "existing")})
	// A cluster refuses a change of its members until all of them have been connected for a
	// while.
	change(rpctypes.ErrPeerURLExist, func(ctx context.Context) error {
		_, err := cli.MemberAdd(ctx, []string{"http://" + peer})
		return err
	})
	all := []string{m.cfg.name + "=http://" + peer}
	for _, one := range c.Members {
		all = append(all, one.cfg.name+"=http://"+one.cfg.peer)
	}
	m.cfg.cluster = strings.Join(all, ",")
	m.start()
	s, err := c.status(old)
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
func (c *Cluster) Others(m *Server) []*Server {
	return slices.DeleteFunc(slices.Clone(c.Members), func(o *Server) bool { return o == m })
}

// status returns the state of a member that answers within a second.
func (c *Cluster) status(m *Server) (*clientv3.StatusResponse, error) {
	if m.process == nil {
		return nil, errors.New("not running")
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	return memberStatus(ctx, m.cfg.listen)
}

// RootPassword is the password of root after EnableAuth.
const RootPassword = "root-of-the-test"

// callTimeout bounds one administrative call to a healthy etcd.
const callTimeout = 10 * time.Second

// fillerKey is outside every key prefix that a test may use.
const fillerKey = "filler/"

// FillUp writes into an etcd with a small quota until it reports no space.
func FillUp(t testing.TB, cli *clientv3.Client) {
	t.Helper()
	value := strings.Repeat("x", 256<<10)
	for i := range 10000 {
		ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
		_, err := cli.Put(ctx, fillerKey+string(rune('a'+i%20)), value)
		cancel()
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return
		}
		require.NoError(t, err, "fill etcd up")
	}
	t.Fatal("fill etcd up: it takes everything; was it started with a quota?")
}

// MakeRoom undoes FillUp in the way an operator would: delete, compact,
// defragment, disarm the alarm.
func MakeRoom(t testing.TB, cli *clientv3.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	del, err := cli.Delete(ctx, fillerKey, clientv3.WithPrefix())
	if err == nil {
		_, err = cli.Compact(ctx, del.Header.Revision, clientv3.WithCompactPhysical())
	}
	for _, e := range cli.Endpoints() {
		if err == nil {
			_, err = cli.Defragment(ctx, e)
		}
	}
	if err == nil {
		_, err = cli.AlarmDisarm(ctx, &clientv3.AlarmMember{})
	}
	require.NoError(t, err, "make room in etcd")
}

// EnableAuth turns authentication on, with root and one user who may read and
// write below prefix. It returns a client authenticated as root.
func EnableAuth(t testing.TB, cli *clientv3.Client, user, password, prefix string) *clientv3.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*callTimeout) // etcd hashes passwords, which is slow on purpose
	defer cancel()
	end := clientv3.GetPrefixRangeEnd(prefix)
	for _, step := range []func() error{
		func() error { _, err := cli.UserAdd(ctx, "root", RootPassword); return err },
		func() error { _, err := cli.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := cli.RoleAdd(ctx, user); return err },
		func() error {
			_, err := cli.RoleGrantPermission(ctx, user, prefix, end, clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := cli.UserAdd(ctx, user, password); return err },
		func() error { _, err := cli.UserGrantRole(ctx, user, user); return err },
		func() error { _, err := cli.AuthEnable(ctx); return err },
	} {
		require.NoError(t, step(), "enable authentication")
	}
	cfg := clientConfig(cli.Endpoints()...)
	cfg.Username, cfg.Password, cfg.DialTimeout = "root", RootPassword, 6*callTimeout
	root, err := clientv3.New(cfg)
	require.NoError(t, err, "log in as root")
	t.Cleanup(func() { _ = root.Close() })
	return root
}
