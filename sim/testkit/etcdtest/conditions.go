package etcdtest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

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
