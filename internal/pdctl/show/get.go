package show

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const getHelp = `get shows one instance: its state and the reason as pdctl list shows them, then its keys in
etcd (the value, its revisions and lease, and the pending add and the operator's intent for
that address, if any). Control characters are escaped. It also shows what each proxy has in
flight there, what each proxy reports about it, and the end of its history. VIEW is why a
proxy does not use it, such as ejected; "-" means that the proxy has no reason.

The instance is role/host:port, as list and watch print it, or two words; the role can be
left out if the address has one only. The exit code is 1 when etcd has nothing about it.`

// Get returns the command get.
func Get(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "get [ROLE/]HOST:PORT", SuggestFor: []string{"describe", "show"}, Short: "show one instance as it is in etcd", Long: getHelp,
		Example: "  pdctl get prefill/10.0.0.7:8100\n  pdctl get 10.0.0.7:8100 --proxy http://10.0.0.1:8000\n  pdctl get decode 10.0.0.8:8200 -o json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := s.One(cmd.Context(), args)
			if err != nil {
				return err
			}
			if s.Proxy != "" {
				return proxyGet(cmd.Context(), s, k)
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error { return get(cmd.Context(), s, conn, k) })
		},
	}
}

// rawJSON is one key in the JSON form of get. Value is the text as it is in
// etcd; bytes that are no UTF-8 are escaped.
type rawJSON struct {
	Kind           string `json:"kind"` // record, pending, override
	Key            string `json:"key"`
	Value          string `json:"value"`
	CreateRevision int64  `json:"create_revision"`
	ModRevision    int64  `json:"mod_revision"`
	Version        int64  `json:"version"`
	Lease          string `json:"lease,omitempty"` // hexadecimal, as etcdctl prints it
	TTL            int64  `json:"ttl,omitempty"`   // seconds left; -1: the lease has expired
	GrantedTTL     int64  `json:"granted_ttl,omitempty"`
}

func get(ctx context.Context, s *session.Session, conn *session.Conn, k instance.Key) error {
	keys, err := conn.Store.Reader.Get(ctx, k)
	if err != nil {
		return s.Hint(err)
	}
	if len(keys) == 0 {
		return fmt.Errorf("etcd has nothing about %s below %s; see pdctl list", k, conn.Layout.Root())
	}
	out := make([]rawJSON, 0, len(keys))
	for i := range keys {
		out = append(out, printable(&keys[i], conn.Layout))
	}
	shown, err := findListing(ctx, conn, k)
	if err != nil {
		return s.Hint(err)
	}
	views, events, unread := details(ctx, s, conn, k)
	if s.Out.Structured() {
		all := map[string]any{"instance": shown, "role": k.Role, "address": k.Address, "keys": out, "proxies": views, "history": events}
		if len(unread) > 0 {
			all["notes"] = unread
		}
		return s.Out.Write(all)
	}
	if shown != nil {
		s.Out.Printf("state     %s\n", state(&listed{Listing: *shown}))
		if shown.Reason != "" {
			s.Out.Printf("reason    %s\n", instance.Printable(shown.Reason, 1000))
		}
		s.Out.Printf("\n")
	}
	printKeys(s, out)
	printDetails(s, views, events, unread)
	return nil
}

// findListing returns the entry of an instance in pdctl list, or its pending add if it is not
// registered. It returns nil if the instance has only an intent.
func findListing(ctx context.Context, conn *session.Conn, k instance.Key) (*instance.Listing, error) {
	snap, err := conn.Store.Reader.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	proxies, _ := conn.Store.Reader.Proxies(ctx) // details notes the error
	seen := lease.Seen(snap, proxies)
	in, ok := seen.Lookup(k)
	if !ok { // a pending add, or nothing
		i := slices.IndexFunc(seen.All(), func(in *instance.Instance) bool { return in.Key == k })
		if i < 0 {
			return nil, nil
		}
		in = seen.All()[i]
	}
	return new(in.Listed(session.DefaultConnector(proxies))), nil
}

// printable returns a key without control characters.
func printable(raw *store.RawKey, layout schema.Layout) rawJSON {
	kind := map[schema.Kind]string{schema.KindPending: "pending", schema.KindOverride: "override"}[layout.Parse(raw.Key).Kind]
	r := rawJSON{
		Kind: cmp.Or(kind, "record"), Key: instance.Printable(raw.Key, 0), Value: output.EscapeValue(raw.Value),
		CreateRevision: raw.CreateRevision, ModRevision: raw.ModRevision, Version: raw.Version,
	}
	if raw.Lease != 0 {
		r.Lease = output.LeaseName(raw.Lease)
		r.TTL, r.GrantedTTL = int64(raw.TTL/time.Second), int64(raw.GrantedTTL/time.Second)
	}
	return r
}

func printKeys(s *session.Session, keys []rawJSON) {
	for i, r := range keys {
		if i > 0 {
			s.Out.Printf("\n")
		}
		lease := "none (static)"
		switch {
		case r.Lease != "" && r.TTL < 0:
			lease = r.Lease + ", expired"
		case r.Lease != "":
			lease = fmt.Sprintf("%s, %d of %d s left", r.Lease, r.TTL, r.GrantedTTL)
		case r.Kind != "record":
			lease = "none"
		}
		value := r.Value
		if value == "" {
			value = "(empty: a registration without a record)"
			if r.Kind != "record" {
				value = "(empty)"
			}
		}
		s.Out.Printf("%s\n  key       %s\n  value     %s\n  created   revision %d\n  changed   revision %d, written %d times\n  lease     %s\n",
			r.Kind, r.Key, value, r.CreateRevision, r.ModRevision, r.Version, lease)
	}
}
