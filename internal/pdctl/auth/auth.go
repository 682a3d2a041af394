// Package auth sets up users and roles of etcd.
package auth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const authHelp = `init sets up roles and users in etcd, one of each for every kind of program that uses the
keys below --etcd-prefix, and turns authentication on:

  pd-agent-prefill   writes prefill instances; an agent of a prefill engine
  pd-agent-decode    the same for decode; an agent with --role both needs both roles
  pd-proxy           proxies
  pd-operator        people with pdctl
  root               the administrator of etcd; needed to change users

Authentication applies to the whole etcd: every other program that uses it, such as
Mooncake, then needs a user too.

Without --apply, pdctl prints etcdctl commands that do the same, and changes nothing. With
--apply it generates each password that no --password-file has, and prints it once.
It keeps existing roles and users: it adds missing permissions to roles, and changes the
password of a user only if a file names a new one. If authentication is already on, use
--etcd-username root.`

const authExamples = `  pdctl auth init --dry-run
  pdctl --etcd-endpoints https://10.0.0.1:2379 --etcd-ca ca.pem auth init --apply
  pdctl auth init --apply --password-file pd-proxy=proxy.pass --password-file root=root.pass`

const (
	rootUser = "root"
	// authLimit bounds all steps together: etcd takes 0.1 s to hash a password.
	authLimit = 30 * time.Second
)

// Command returns the command auth.
func Command(s *session.Session) *cobra.Command {
	auth := &cobra.Command{
		Use: "auth", Short: "set up etcd users", Example: "  pdctl auth init --dry-run", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var dry, apply bool
	var files []string
	init := &cobra.Command{
		Use: "init", Short: "set up roles and users in etcd", Long: authHelp, Example: authExamples, Args: cobra.NoArgs,
		RunE: s.Wrap(func(cmd *cobra.Command, _ []string) error {
			if err := s.Out.TextOnly("this prints text only"); err != nil {
				return err
			}
			if dry && apply {
				return cli.Wrongf("--dry-run and --apply exclude each other")
			}
			u := users{roles: schema.EtcdRoles(s.Etcd.Layout), given: map[string]string{}}
			if err := u.readPasswords(files); err != nil {
				return err
			}
			if !apply {
				printAuth(s, &u)
				return nil
			}
			return applyAuth(cmd.Context(), s, &u)
		}),
	}
	fs := init.Flags()
	fs.BoolVar(&dry, "dry-run", false, "print the commands and change nothing; the default without --apply")
	fs.BoolVar(&apply, "apply", false, "make the changes")
	fs.StringArrayVar(&files, "password-file", nil, "USER=FILE: the password of a user, in the first line of a file; may be repeated")
	auth.AddCommand(init)
	return auth
}

// users are the users and roles to set up.
type users struct {
	roles []schema.EtcdRole
	given map[string]string // passwords from files, by user
}

func (u *users) names() []string {
	names := []string{rootUser}
	for _, r := range u.roles {
		names = append(names, r.Name)
	}
	return names
}

func (u *users) readPasswords(files []string) error {
	for _, f := range files {
		name, path, ok := strings.Cut(f, "=")
		if !ok || !slices.Contains(u.names(), name) {
			return cli.Wrongf("--password-file %q: write USER=FILE; the users are %s", f, strings.Join(u.names(), ", "))
		}
		password, err := access.ReadPassword(path)
		if err != nil {
			return cli.Wrongf("--password-file %s: %w", name, err)
		}
		u.given[name] = password
	}
	return nil
}

// printAuth prints the equivalent commands of etcdctl.
func printAuth(s *session.Session, u *users) {
	out := s.Out.Stdout
	fmt.Fprintln(out, "# Nothing is changed. These commands do the same as --apply; etcdctl asks for the passwords.")
	for _, r := range u.roles {
		fmt.Fprintf(out, "\n# %s\netcdctl role add %s\n", r.What, r.Name)
		for _, g := range r.Grants {
			kind := "read"
			if g.Write {
				kind = "readwrite"
			}
			if strings.HasSuffix(g.Prefix, "/") {
				fmt.Fprintf(out, "etcdctl role grant-permission --prefix=true %s %s %s\n", r.Name, kind, g.Prefix)
			} else {
				fmt.Fprintf(out, "etcdctl role grant-permission %s %s %s\n", r.Name, kind, g.Prefix)
			}
		}
		fmt.Fprintf(out, "etcdctl user add %s\netcdctl user grant-role %s %s\n", r.Name, r.Name, r.Name)
	}
	fmt.Fprint(out, "\n# etcd itself\netcdctl user add root\netcdctl user grant-role root root\netcdctl auth enable\n")
}

// applyAuth sets up roles and users and turns authentication on. Root and authentication
// come last: if a step before them fails, etcd is as open as it was, and the command can be
// repeated.
func applyAuth(ctx context.Context, s *session.Session, u *users) error {
	if !s.Etcd.TLS.Used() && !s.Etcd.Local() {
		return cli.Wrongf("passwords would go over the network unencrypted: use https:// endpoints and --etcd-ca, or run this on etcd's own machine")
	}
	conn, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Store.EnsureSchema(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, max(s.Timeout, authLimit))
	defer cancel()
	auth := authSteps{ctx: ctx, cli: conn.Client, given: u.given, out: s.Out.Stdout}
	for _, r := range u.roles {
		if err := auth.role(r); err != nil {
			return fmt.Errorf("role %s: %w", r.Name, err)
		}
	}
	for _, name := range append(u.names()[1:], rootUser) {
		if err := auth.user(name); err != nil {
			return fmt.Errorf("user %s: %w", name, err)
		}
	}
	if _, err := conn.Client.AuthEnable(ctx); err != nil {
		return fmt.Errorf("enable authentication: %w", err)
	}
	return s.Out.Println("authentication is on; set for proxies, agents and pdctl their --etcd-username and --etcd-password-file")
}

// authSteps executes the steps of one run.
type authSteps struct {
	ctx   context.Context //nolint:containedctx // of this one run
	cli   *clientv3.Client
	given map[string]string
	out   io.Writer
}

// say prints the result for a user immediately: a later step may fail, and a generated password
// is stored nowhere else.
func (x *authSteps) say(format string, args ...any) { fmt.Fprintf(x.out, format+"\n", args...) }

func (x *authSteps) role(r schema.EtcdRole) error {
	if _, err := x.cli.RoleAdd(x.ctx, r.Name); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
		return err
	}
	for _, g := range r.Grants {
		end, kind := "", clientv3.PermissionType(clientv3.PermRead)
		if strings.HasSuffix(g.Prefix, "/") {
			end = clientv3.GetPrefixRangeEnd(g.Prefix)
		}
		if g.Write {
			kind = clientv3.PermissionType(clientv3.PermReadWrite)
		}
		if _, err := x.cli.RoleGrantPermission(x.ctx, r.Name, g.Prefix, end, kind); err != nil {
			return err
		}
	}
	return nil
}

func (x *authSteps) user(name string) error {
	password, given := x.given[name]
	if !given {
		password = rand.Text()
	}
	_, err := x.cli.UserAdd(x.ctx, name, password)
	switch {
	case errors.Is(err, rpctypes.ErrUserAlreadyExist) && given:
		if _, err := x.cli.UserChangePassword(x.ctx, name, password); err != nil {
			return err
		}
		if name == x.cli.Username { // the change has ended the session
			x.cli.Password = password
		}
		x.say("%s: existed; its password is now that of its file", name)
	case errors.Is(err, rpctypes.ErrUserAlreadyExist):
		x.say("%s: existed, and keeps its password", name)
	case err != nil:
		return err
	case given:
		x.say("%s: created with the password of its file", name)
	default:
		x.say("%s: password %s", name, password)
	}
	_, err = x.cli.UserGrantRole(x.ctx, name, name)
	return err
}
