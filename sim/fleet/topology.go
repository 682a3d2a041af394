package fleet

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Topology describes a fleet of proxies on one etcd, and of nodes that differ
// only in their role.
type Topology struct {
	// Etcd is the number of etcd members with a process each; 0 means that the
	// first proxy embeds etcd.
	Etcd                     int
	Proxies, Prefill, Decode int
	AdminKey                 string
	ProxyArgs                []string
	// Node is the template of every node. Launch sets name, role and etcd,
	// and clears TTFT for decode engines, which receive a computed prompt.
	Node NodeSpec
}

// Running holds the processes that Launch started.
type Running struct {
	Etcd    []*Member // empty if the first proxy embeds etcd
	Proxies []*Proxy
	Prefill []*Node
	Decode  []*Node
}

// Launch starts a topology and returns once every proxy serves every instance.
func (f *Fleet) Launch(ctx context.Context, t Topology) (*Running, error) {
	r := &Running{Prefill: make([]*Node, t.Prefill), Decode: make([]*Node, t.Decode)}
	var etcd []string
	if t.Etcd > 0 {
		members, err := f.StartEtcd(ctx, t.Etcd)
		if err != nil {
			return nil, err
		}
		r.Etcd, etcd = members, Endpoints(members)
	}
	for i := range t.Proxies {
		p, err := f.StartProxy(ctx, ProxySpec{
			Name: fmt.Sprintf("proxy-%d", i+1), EtcdEndpoints: etcd, AdminKey: t.AdminKey, Args: t.ProxyArgs,
		})
		if err != nil {
			return nil, err
		}
		etcd = p.Etcd
		r.Proxies = append(r.Proxies, p)
	}
	var group errgroup.Group
	for i := range t.Prefill + t.Decode {
		s := t.Node
		s.Etcd = etcd
		slot := &r.Prefill
		s.Role = instance.Prefill
		n := i
		if i >= t.Prefill {
			slot, s.Role, n = &r.Decode, instance.Decode, i-t.Prefill
			s.TTFT = 0
		}
		s.Name = fmt.Sprintf("%s-%d", s.Role, n+1)
		group.Go(func() (err error) {
			(*slot)[n], err = f.StartNode(ctx, s)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, p := range r.Proxies {
		if err := p.WaitFor(ctx, t.Prefill, t.Decode); err != nil {
			return nil, err
		}
	}
	return r, nil
}
