// Package mooncake implements pdctl mooncake, which lists the segments that Mooncake has
// registered in the same etcd.
package mooncake

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const segmentsHelp = `segments lists the entries of Mooncake's transfer engines in the same etcd, with the
instances on the same host. It reads mooncake/ram/ and mooncake/rpc_meta/, also below the
id of a metadata cluster. It changes nothing: pdctl writes only below its own prefix.

Mooncake's keys have no lease, so the keys of an engine that died stay. STALE can have:
  not listening            its rpc port refuses, or does not answer within --timeout
  no instance on the host  pdmesh has no instance there; it may be a client of a store
  no rpc_meta              other transfer engines cannot find it

If etcd has users, segments needs a user that may read mooncake/. The roles of "pdctl auth
init" may not.`

const (
	mooncakeRoot = "mooncake/"
	mostSegments = 1000 // that are dialed
	dialsAtOnce  = 16
)

// Command returns the command mooncake.
func Command(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "mooncake", Short: "show what Mooncake stores in the same etcd", Example: "  pdctl mooncake segments", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	dial := true
	segments := &cobra.Command{
		Use: "segments", Short: "list Mooncake's segments and the instances on the same hosts", Long: segmentsHelp,
		Example: "  pdctl mooncake segments\n  pdctl mooncake segments --dial=false\n  pdctl mooncake segments -o json | jq '.segments[] | select(.stale)'",
		Args:    cobra.NoArgs,
	}
	segments.RunE = s.Wrap(func(cmd *cobra.Command, _ []string) error {
		return s.With(cmd.Context(), func(conn *session.Conn) error { return listSegments(cmd.Context(), s, conn, dial) })
	})
	s.Watches(segments).Flags().BoolVar(&dial, "dial", true, "connect to each rpc port, to find those that do not listen")
	cmd.AddCommand(segments)
	return cmd
}

// segment is one transfer engine, as its keys describe it.
type segment struct {
	Cluster   string   `json:"cluster,omitempty"`
	Name      string   `json:"name"` // host:port, as a rule
	RAM       bool     `json:"ram"`
	RPC       string   `json:"rpc,omitempty"` // where it listens
	Instances []string `json:"instances"`
	Stale     string   `json:"stale,omitempty"`
}

func listSegments(ctx context.Context, s *session.Session, conn *session.Conn, dial bool) error {
	cctx, cancel := context.WithTimeout(ctx, max(s.Timeout, 2*time.Second))
	defer cancel()
	list, err := readSegments(cctx, conn)
	if err != nil {
		return s.Hint(err)
	}
	snap, err := conn.Store.Reader.Snapshot(ctx)
	if err != nil {
		return s.Hint(err)
	}
	for _, x := range list {
		x.findInstances(snap)
	}
	var g errgroup.Group
	g.SetLimit(dialsAtOnce)
	for i, x := range list {
		g.Go(func() error { x.markStale(ctx, dial && i < mostSegments, s.Timeout); return nil })
	}
	_ = g.Wait()
	t := output.NewTable("SEGMENT", "CLUSTER", "RPC", "INSTANCES", "STALE")
	for _, x := range list {
		t.AppendRow([]any{x.Name, cmp.Or(x.Cluster, "-"), cmp.Or(x.RPC, "-"), cmp.Or(strings.Join(x.Instances, ","), "-"), cmp.Or(x.Stale, "-")})
	}
	return s.Out.List(map[string]any{"segments": list}, t, "Mooncake keeps no segments in this etcd.")
}

// readSegments returns the segments of all keys, sorted by cluster and name.
func readSegments(ctx context.Context, conn *session.Conn) ([]*segment, error) {
	resp, err := conn.Client.Get(ctx, mooncakeRoot, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("list the keys below %s: %w", mooncakeRoot, err)
	}
	byKey := map[[2]string]*segment{}
	for _, kv := range resp.Kvs {
		parts := segmentKey.FindStringSubmatch(string(kv.Key))
		if parts == nil {
			continue
		}
		cluster, kind, name := parts[1], parts[2], parts[3]
		at := [2]string{cluster, name}
		if byKey[at] == nil {
			byKey[at] = &segment{Cluster: instance.Printable(cluster, 80), Name: instance.Printable(name, 300), Instances: []string{}}
		}
		if kind == "ram" {
			byKey[at].RAM = true
			continue
		}
		value, err := conn.Client.Get(ctx, string(kv.Key)) // small, unlike those of ram
		if err != nil {
			return nil, err
		}
		if len(value.Kvs) == 1 {
			byKey[at].RPC = rpcAddress(value.Kvs[0].Value)
		}
	}
	list := slices.AppendSeq([]*segment{}, maps.Values(byKey))
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Name, b.Name)) })
	return list, nil
}

// segmentKey matches the key of a segment, mooncake/[cluster/]ram|rpc_meta/name. A name may have slashes.
var segmentKey = regexp.MustCompile(`(?s)^mooncake/(?:([^/]*)/)??(ram|rpc_meta)/(.*)$`)

// rpcAddress returns the address at which a transfer engine listens, "" if its value has none.
func rpcAddress(value []byte) string {
	var meta struct {
		Host string `json:"ip_or_host_name"`
		Port int    `json:"rpc_port"`
	}
	if json.Unmarshal(value, &meta) != nil || meta.Host == "" || meta.Port < 1 || meta.Port > 65535 {
		return ""
	}
	address, _ := instance.ParseAddress(net.JoinHostPort(meta.Host, strconv.Itoa(meta.Port))) // "" with an error
	return address
}

// findInstances finds our instances on the host of the segment.
func (x *segment) findInstances(snap *instance.Snapshot) {
	hosts := map[string]bool{}
	for _, address := range []string{x.Name, x.RPC} {
		if host, _, err := net.SplitHostPort(address); err == nil && host != "" {
			hosts[strings.ToLower(host)] = true
		}
	}
	for _, in := range snap.All() {
		if host, _, err := net.SplitHostPort(in.Address); err == nil && hosts[host] {
			x.Instances = append(x.Instances, in.Key.String())
		}
	}
}

// markStale sets Stale to the reasons why the segment seems to be left over.
func (x *segment) markStale(ctx context.Context, dial bool, limit time.Duration) {
	var why []string
	if x.RPC == "" {
		why = append(why, "no rpc_meta")
	} else if dial {
		cctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if conn, err := (&net.Dialer{}).DialContext(cctx, "tcp", x.RPC); err != nil {
			why = append(why, "not listening")
		} else {
			_ = conn.Close() // nothing was sent
		}
	}
	if len(x.Instances) == 0 {
		why = append(why, "no instance on the host")
	}
	x.Stale = strings.Join(why, ", ")
}
