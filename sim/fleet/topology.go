package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"

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
	// Node is the template of every node. Launch sets name, role, port and etcd,
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
	// Reserve the ports of all nodes in one call: nodes that search at the same
	// time could find the same port.
	ports, err := FreePorts(t.Prefill + t.Decode)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(ports))
	var group sync.WaitGroup
	for i := range ports {
		s := t.Node
		s.Port, s.Etcd = ports[i], etcd
		slot := &r.Prefill
		s.Role = instance.Prefill
		n := i
		if i >= t.Prefill {
			slot, s.Role, n = &r.Decode, instance.Decode, i-t.Prefill
			s.TTFT = 0
		}
		s.Name = fmt.Sprintf("%s-%d", s.Role, n+1)
		group.Go(func() { (*slot)[n], errs[i] = f.StartNode(ctx, s) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, p := range r.Proxies {
		if err := p.WaitFor(ctx, t.Prefill, t.Decode); err != nil {
			return nil, err
		}
	}
	return r, nil
}
