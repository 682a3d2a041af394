package watch_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// lossy returns a client whose watches lose the events that drop selects, as with a faulty server or library.
func lossy(t testing.TB, endpoint string, drop func(*mvccpb.Event) bool) *clientv3.Client {
	t.Helper()
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := streamer(ctx, desc, cc, method, opts...)
			return &lossyStream{s, drop}, err
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = cli.Close() })
	return cli
}

type lossyStream struct {
	grpc.ClientStream
	drop func(*mvccpb.Event) bool
}

func (s *lossyStream) RecvMsg(m any) error {
	for {
		if err := s.ClientStream.RecvMsg(m); err != nil {
			return err
		}
		resp, ok := m.(*pb.WatchResponse)
		if !ok || len(resp.Events) == 0 {
			return nil
		}
		resp.Events = slices.DeleteFunc(resp.Events, s.drop)
		if len(resp.Events) > 0 {
			return nil
		}
		resp.Reset()
	}
}

func auditing(t testing.TB, p watch.Prober) watch.Options {
	o := members.Probing(t, p, "")
	o.CheckInterval = time.Hour
	o.AuditInterval = 100 * time.Millisecond
	return o
}

// The audit detects a watch that loses events, whatever the events.
func TestAudit_MissedEvents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		do     func(t *testing.T, cli *clientv3.Client, key string)
		want   func(*instance.Instance) error
		others bool // other events arrive after the lost one
	}{
		{"a put", func(t *testing.T, cli *clientv3.Client, key string) { members.Put(t, cli, key, members.Ready+" ") }, members.Is(func(in *instance.Instance) bool {
			return in.Version == 2
		}), true},
		{"a delete", func(t *testing.T, cli *clientv3.Client, key string) { members.Del(t, cli, key) }, nil, true},
		{"a delete and all that follows", func(t *testing.T, cli *clientv3.Client, key string) { members.Del(t, cli, key) }, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t)
			cli, l := etcd.Client(t), members.Layout(t)
			require.NoError(t, store.New(cli, l, "test").EnsureSchema(t.Context()))
			k, other := members.Prefill("10.0.0.1:8100"), members.Prefill("10.0.0.2:8100")
			members.Put(t, cli, l.Instance(k), members.Ready)
			var deaf atomic.Bool
			w := members.Watch(t, lossy(t, etcd.Endpoint(), func(ev *mvccpb.Event) bool {
				return deaf.Load() && (!c.others || string(ev.Kv.Key) == l.Instance(k))
			}), auditing(t, members.NewProber()))
			members.WaitFor(t, w, k, members.Usable)
			members.WaitState(t, w, watch.Live)
			deaf.Store(true)
			c.do(t, cli, l.Instance(k))
			members.Put(t, cli, l.Instance(other), members.Ready)
			members.WaitFor(t, w, k, c.want)
			members.WaitFor(t, w, other, members.Usable)
			s := w.Status()
			require.True(t, s.Drift != 0 && s.Epochs <= 1, "status: %+v", s)
		})
	}
}

// While a watch works, the audit never causes another list, however many changes there are.
func TestAudit_HealthyWatch(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	o := auditing(t, members.NewProber())
	o.AuditInterval = 2 * time.Millisecond
	w := members.Watch(t, cli, o)
	members.WaitReady(t, w)
	keys := []instance.Key{members.Prefill("10.0.0.1:1"), members.Prefill("10.0.0.2:1"), members.Decode("10.0.0.3:1")}
	for i := range 600 {
		k := keys[i%len(keys)]
		switch i % 4 {
		case 3:
			members.Del(t, cli, l.Instance(k))
		default:
			members.Put(t, cli, l.Instance(k), members.Ready)
		}
	}
	require.NoError(t, store.New(cli, l, "test").EnsureSchema(t.Context()))
	n := w.Status().Audits
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Audits >= n+20 })
	s := w.Status()
	require.True(t, s.Drift == 0 && s.Lists == 1 && s.Epochs == 0 && s.AuditErrors == 0, "status: %+v", s)
}

// Keys under leases do not differ between audits: no audit reports a missed event of a working watch.
func TestAudit_LeasedKeys(t *testing.T) {
	t.Parallel()
	cli, l := etcdtest.Start(t).Client(t), members.Layout(t)
	for i := range 3 {
		leased(t, cli, l, members.Prefill(fmt.Sprintf("10.0.0.%d:1", i+1)))
	}
	o := auditing(t, members.NewProber())
	o.AuditInterval = 200 * time.Millisecond // two differing audits count if they are at least 300 ms apart
	w := members.Watch(t, cli, o)
	members.WaitReady(t, w)
	members.WaitStatus(t, w, func(s watch.Status) bool { return s.Audits >= 25 || s.Drift != 0 })
	s := w.Status()
	assert.True(t, s.Drift == 0 && s.Lists == 1, "%+v", s)
}
