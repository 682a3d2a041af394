package fleet

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

// MemberSpec describes one member of an etcd cluster. The Spec of a Member that
// was killed starts it again, with its data.
type MemberSpec struct {
	Name    string
	Client  string   // host:port for clients
	Peer    string   // host:port for the other members
	Cluster string   // name=url of every member, separated by commas
	Args    []string // added to the command line
}

// Member is a running etcd member.
type Member struct {
	*Process
	Spec MemberSpec
}

// StartEtcd starts an etcd cluster of n members and waits until each of them
// serves clients. The members run program etcd of the BinDir, with more args.
func (f *Fleet) StartEtcd(ctx context.Context, n int, args ...string) ([]*Member, error) {
	ports, err := FreePorts(2 * n)
	if err != nil {
		return nil, err
	}
	specs := make([]MemberSpec, n)
	urls := make([]string, n)
	for i := range specs {
		specs[i] = MemberSpec{Name: fmt.Sprintf("etcd-%d", i+1), Client: loopback(ports[2*i]), Peer: loopback(ports[2*i+1]), Args: args}
		urls[i] = specs[i].Name + "=http://" + specs[i].Peer
	}
	members := make([]*Member, n)
	// Members become healthy together, once a quorum of them runs.
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range specs {
		s.Cluster = strings.Join(urls, ",")
		group.Go(func() (err error) {
			members[i], err = f.StartMember(ctx, s)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return members, nil
}

// StartMember starts one member of an etcd cluster and waits until it is
// healthy, which requires a quorum. The arguments are those of
// docker-compose.yml, with loopback addresses.
func (f *Fleet) StartMember(ctx context.Context, s MemberSpec) (*Member, error) {
	client, peer := "http://"+s.Client, "http://"+s.Peer
	p, err := f.Start(ctx, Spec{
		Name: s.Name, Program: "etcd",
		Args: append([]string{
			"--name=" + s.Name, "--data-dir=" + filepath.Join(f.dir, s.Name),
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=" + s.Cluster, "--initial-cluster-token=pdmesh",
			"--auto-compaction-mode=periodic", "--auto-compaction-retention=5m",
		}, s.Args...),
		Ready: func(ctx context.Context) error { return f.Get(ctx, client+"/health?exclude=NOSPACE", nil) },
	})
	if err != nil {
		return nil, err
	}
	return &Member{Process: p, Spec: s}, nil
}

// Endpoints returns the client addresses of the members.
func Endpoints(members []*Member) []string {
	out := make([]string, len(members))
	for i, m := range members {
		out[i] = m.Spec.Client
	}
	return out
}
