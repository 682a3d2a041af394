package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Topology is a fleet of the usual shape: proxies on one etcd, which the first
// of them embeds, and nodes that are all alike but for their role.
type Topology struct {
	Proxies, Prefill, Decode int
	AdminKey                 string
	ProxyArgs                []string
	// Node is the pattern of every node; Launch sets name, role, port and etcd,
	// and no TTFT for decode, where the prompt arrives computed.
	Node NodeSpec
}

// Running is what Launch started.
type Running struct {
	Proxies []*Proxy
	Prefill []*Node
	Decode  []*Node
}

// Launch starts a topology and returns once every proxy serves every instance.
func (f *Fleet) Launch(ctx context.Context, t Topology) (*Running, error) {
	r := &Running{Prefill: make([]*Node, t.Prefill), Decode: make([]*Node, t.Decode)}
	var etcd []string
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
	// The ports of all nodes at once: nodes that look for theirs at the same
	// time could find the same one.
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
