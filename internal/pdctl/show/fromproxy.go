package show

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// proxyList implements list with --proxy.
func proxyList(ctx context.Context, s *session.Session, roles []instance.Role, order string) error {
	if s.Selector.Labels() {
		return cli.Wrongf("--proxy: a proxy does not show labels; use role, model or state in --selector")
	}
	st, err := s.StatusOf(ctx, s.Proxy)
	if err != nil {
		return err
	}
	entries := []*listed{}
	for _, l := range st.Instances {
		if slices.Contains(roles, l.Role) && s.Selector.Matches(asInstance(l)) {
			entries = append(entries, &listed{Listing: l})
		}
	}
	noteProxy(s, st)
	return printList(s, entries, order, []Removal{}, instance.NewSnapshot(st.Revision, nil), s.Proxy)
}

// noteProxy prints on stderr which proxy the data is from.
func noteProxy(s *session.Session, st *session.ProxyStatus) {
	fmt.Fprintf(s.Out.Stderr, "from proxy %s, whose etcd is %s; last contact %s\n", instance.Printable(st.ID, 64), instance.Printable(st.Etcd.State, 20), instance.Printable(st.Etcd.LastContact, 40))
}

// asInstance returns an instance with the fields of an entry that selectors use.
func asInstance(l instance.Listing) *instance.Instance {
	return &instance.Instance{
		Key: instance.Key{Role: l.Role, Address: l.Address}, View: l.View, Intent: l.Intent, OnlyRole: l.OnlyRole,
		Record: instance.Record{Models: l.Models, State: l.State, Cause: l.Cause},
	}
}

// proxyGet implements get with --proxy. It prints only the columns of list.
func proxyGet(ctx context.Context, s *session.Session, k instance.Key) error {
	st, err := s.StatusOf(ctx, s.Proxy)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(st.Instances, func(l instance.Listing) bool { return l.Role == k.Role && l.Address == k.Address })
	if i < 0 {
		return fmt.Errorf("the proxy does not know %s; see pdctl list --proxy", k)
	}
	noteProxy(s, st)
	l := &st.Instances[i]
	if s.Out.Structured() {
		return s.Out.Write(map[string]any{"instance": l, "role": k.Role, "address": k.Address})
	}
	for _, c := range columns() {
		if cell := c.cell(&listed{Listing: *l}); cell != "" {
			s.Out.Printf("%-11s  %s\n", c.name, cell)
		}
	}
	return nil
}

// proxyState implements status with --proxy.
func proxyState(ctx context.Context, s *session.Session) error {
	st, err := s.StatusOf(ctx, s.Proxy)
	if err != nil {
		return err
	}
	var unserved error
	if slices.ContainsFunc(st.Notices, func(n string) bool { return strings.HasSuffix(n, instance.NothingServed) }) {
		unserved = errors.New("nothing is served by this proxy")
	}
	if s.Out.Structured() {
		return cmp.Or(s.Out.Write(st), unserved)
	}
	s.Out.Printf("proxy: %s, version %s\netcd: %s, last contact %s\n", instance.Printable(st.ID, 64), instance.Printable(st.Version, 40),
		instance.Printable(st.Etcd.State, 20), instance.Printable(st.Etcd.LastContact, 40))
	if st.Etcd.LastError != "" {
		s.Out.Printf("last error of etcd: %s\n", instance.Printable(st.Etcd.LastError, 300))
	}
	s.Out.Printf("revision: %d\n\n", st.Revision)
	all := make([]*instance.Instance, 0, len(st.Instances))
	for _, l := range st.Instances {
		all = append(all, asInstance(l))
	}
	printCounts(s, counts(instance.NewSnapshot(st.Revision, all)))
	for i, n := range st.Notices {
		if i == 0 {
			s.Out.Printf("\n")
		}
		s.Out.Printf("notice: %s\n", instance.Printable(n, 500))
	}
	return unserved
}
