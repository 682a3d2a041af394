package static_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/static"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// refusing is an etcd client whose changes of some keys fail.
type refusing struct {
	clientv3.KV
	keys []string
}

func (r refusing) Txn(ctx context.Context) clientv3.Txn { return refusingTxn{r.KV.Txn(ctx), r.keys} }

type refusingTxn struct {
	clientv3.Txn
	keys []string
}

func (r refusingTxn) If(cs ...clientv3.Cmp) clientv3.Txn { return refusingTxn{r.Txn.If(cs...), r.keys} }

func (r refusingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	if slices.ContainsFunc(ops, func(op clientv3.Op) bool { return !op.IsGet() && slices.Contains(r.keys, string(op.KeyBytes())) }) {
		return refusedTxn{r.Txn}
	}
	return r.Txn.Then(ops...)
}

type refusedTxn struct{ clientv3.Txn }

func (r refusedTxn) Else(...clientv3.Op) clientv3.Txn { return r }

func (refusedTxn) Commit() (*clientv3.TxnResponse, error) { return nil, errors.New("refused") }

// An instance that is no longer on the command line is removed even if another one cannot be
// written. The removal is logged once, because the next attempt does not find the instance.
func TestSync_LogsRemovalDespiteError(t *testing.T) {
	t.Parallel()
	cli := etcdtest.Start(t).Client(t)
	l := members.Layout(t)
	instances := store.New(cli, l, "test").Instances
	log, hook := test.NewNullLogger()
	const proxy = "127.0.0.1:8000"
	sync := func(prefill ...string) error {
		cfg := config.Proxy{}
		cfg.Prefill = prefill
		return static.New(&cfg, proxy, nil).Sync(t.Context(), instances, log)
	}
	require.NoError(t, sync("127.0.0.1:1"))
	dropped, wanted := l.Instance(members.Prefill("127.0.0.1:1")), l.Instance(members.Prefill("127.0.0.1:2"))
	kv := cli.KV
	for _, tc := range []struct {
		refused []string
		lines   int
	}{
		{[]string{wanted, dropped}, 0},
		{[]string{wanted}, 1},
		{nil, 1},
	} {
		cli.KV = refusing{kv, tc.refused}
		assert.Equal(t, len(tc.refused) > 0, (sync("127.0.0.1:2") != nil), "%q refused", tc.refused)
		entries := hook.AllEntries()
		if len(entries) != tc.lines || tc.lines > 0 && !strings.Contains(entries[0].Message, "127.0.0.1:1 was on an earlier command line") {
			t.Errorf("%q refused: %d lines: %v", tc.refused, len(entries), entries)
		}
	}
	cli.KV = kv
}

func TestMain(m *testing.M) {
	leak.Main(m)
}
