package faults_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/agent/agentctl"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/longform"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// etcd is paused until every lease has expired, and when it resumes no agent can register, because
// its user has lost the role or has another password. The instances are used while their probes
// pass, also after the grace period, and the operator sees a notice.
func TestFault28_PausedThenNoAuth(t *testing.T) {
	longform.Test(t)
	row(t, 28)
	const user, password = "agents", "secret of the agents"
	root := members.Layout(t).Root()
	for _, tc := range authFaults(user, password, root) {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t)
			admin := etcdtest.EnableAuth(t, etcd.Client(t), user, password, root)
			r := build(t, plan{
				etcd: []string{etcd.Endpoint()},
				proxyArgs: []string{
					"--audit-interval", "2s", "--orphan-grace", "2s",
					"--etcd-username", "root", "--etcd-password", etcdtest.RootPassword,
				},
				agentArgs: []string{"--etcd-username", user, "--etcd-password", password},
			})
			l, p := r.load(), r.startPool()
			require.NoError(t, tc.break_(t.Context(), admin))
			etcd.Pause()
			wait(t, outage(6*time.Second, 30*time.Second))
			l.Served(20)
			etcd.Resume()
			for _, n := range r.nodes() { // the alarm that an operator sees
				r.awaitAgent(n, func(rep agentctl.Report) error {
					if rep.Registration.Phase == string(lease.Registered) || !contains(rep.Registration.Reason, tc.says) {
						return fmt.Errorf("%s: %+v", rep.Address, rep.Registration)
					}
					return nil
				})
			}
			r.awaitView(instance.Orphan)
			wait(t, 6*time.Second) // three times the grace
			r.awaitView(instance.Orphan)
			l.Served(20)
			require.NoError(t, tc.mend(t.Context(), admin))
			mended := time.Now()
			for _, n := range r.nodes() {
				r.awaitAgent(n, registrationIs(lease.Registered))
			}
			r.awaitView("")
			measured(t, 28, tc.name+": mended to all registered and followed", time.Since(mended), 0)
			l.Served(20)
			p.finish(l, 2)
		})
	}
}

// awaitView waits until every agent's instance is shown with the given view.
func (r *rig) awaitView(v instance.View) {
	r.t.Helper()
	r.awaitStatus(func(s status) error {
		for _, n := range r.nodes() {
			if in, ok := s.entry(n.Address); !ok || in.View != v {
				return fmt.Errorf("%s is %+v, want view %q", n.Address, in, v)
			}
		}
		return nil
	})
}

// authFault makes the login of a user invalid, or valid again.
type authFault struct {
	name, says   string
	break_, mend func(context.Context, *clientv3.Client) error
}

func authFaults(user, password, root string) []authFault {
	perm, end := clientv3.PermissionType(clientv3.PermReadWrite), clientv3.GetPrefixRangeEnd(root)
	login := func(password string) func(context.Context, *clientv3.Client) error {
		return func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.UserChangePassword(ctx, user, password)
			return err
		}
	}
	return []authFault{
		{
			"role revoked", "denies this user access",
			func(ctx context.Context, c *clientv3.Client) error {
				_, err := c.RoleRevokePermission(ctx, user, root, end)
				return err
			},
			func(ctx context.Context, c *clientv3.Client) error {
				_, err := c.RoleGrantPermission(ctx, user, root, end, perm)
				return err
			},
		},
		{"password changed", "does not accept this user name and password", login("other"), login(password)},
	}
}
