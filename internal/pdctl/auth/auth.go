// Package auth sets up users and roles of etcd.
package auth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const authHelp = `init sets up roles and users in etcd, one of each for every kind of program that uses the
keys below --etcd-prefix, and turns authentication on:

  pd-agent-prefill   writes prefill instances; an agent of a prefill engine
  pd-agent-decode    the same for decode; an agent with --role both needs both roles
  pd-proxy           proxies
  pd-operator        operators who use pdctl
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
			if apply {
				return u.apply(cmd.Context(), s)
			}
			u.print(&s.Out)
			return nil
		}),
	}
	fs := init.Flags()
	fs.BoolVar(&dry, "dry-run", false, "print the commands and change nothing; the default without --apply")
	fs.BoolVar(&apply, "apply", false, "make the changes")
	fs.StringArrayVar(&files, "password-file", nil, "USER=FILE: the password of a user, in the first line of a file; may be repeated")
	auth.AddCommand(init)
	return auth
}

// users has the users and roles to set up.
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

// print prints the equivalent commands of etcdctl.
func (u *users) print(out *output.Printer) {
	out.Printf("# Nothing is changed. These commands do the same as --apply; etcdctl prompts for the passwords.\n")
	for _, r := range u.roles {
		out.Printf("\n# %s\netcdctl role add %s\n", r.What, r.Name)
		for _, g := range r.Grants {
			kind := "read"
			if g.Write {
				kind = "readwrite"
			}
			if strings.HasSuffix(g.Prefix, "/") {
				out.Printf("etcdctl role grant-permission --prefix=true %s %s %s\n", r.Name, kind, g.Prefix)
			} else {
				out.Printf("etcdctl role grant-permission %s %s %s\n", r.Name, kind, g.Prefix)
			}
		}
		out.Printf("etcdctl user add %s\netcdctl user grant-role %s %s\n", r.Name, r.Name, r.Name)
	}
	out.Printf("\n# etcd itself\netcdctl user add root\netcdctl user grant-role root root\netcdctl auth enable\n")
}

// apply sets up roles and users and turns authentication on. Root and authentication come last:
// if an earlier step fails, access to etcd is as before, and the command can be repeated.
func (u *users) apply(ctx context.Context, s *session.Session) error {
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
	for _, r := range u.roles {
		if err := addRole(ctx, conn.Client, r); err != nil {
			return fmt.Errorf("role %s: %w", r.Name, err)
		}
	}
	for _, name := range append(u.names()[1:], rootUser) {
		if err := u.add(ctx, conn.Client, name, &s.Out); err != nil {
			return fmt.Errorf("user %s: %w", name, err)
		}
	}
	if _, err := conn.Client.AuthEnable(ctx); err != nil {
		return fmt.Errorf("enable authentication: %w", err)
	}
	return s.Out.Println("authentication is on; set for proxies, agents and pdctl their --etcd-username and --etcd-password-file")
}

func addRole(ctx context.Context, client *clientv3.Client, r schema.EtcdRole) error {
	if _, err := client.RoleAdd(ctx, r.Name); err != nil && !errors.Is(err, rpctypes.ErrRoleAlreadyExist) {
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
		if _, err := client.RoleGrantPermission(ctx, r.Name, g.Prefix, end, kind); err != nil {
			return err
		}
	}
	return nil
}

// add adds a user and prints the result immediately: a later step may fail, and a generated
// password is stored nowhere else.
func (u *users) add(ctx context.Context, client *clientv3.Client, name string, out *output.Printer) error {
	password, given := u.given[name]
	if !given {
		password = rand.Text()
	}
	_, err := client.UserAdd(ctx, name, password)
	switch {
	case errors.Is(err, rpctypes.ErrUserAlreadyExist) && given:
		if _, err := client.UserChangePassword(ctx, name, password); err != nil {
			return err
		}
		if name == client.Username { // the change has ended the session
			client.Password = password
		}
		out.Printf("%s: existed; its password is now that of its file\n", name)
	case errors.Is(err, rpctypes.ErrUserAlreadyExist):
		out.Printf("%s: existed, and keeps its password\n", name)
	case err != nil:
		return err
	case given:
		out.Printf("%s: created with the password of its file\n", name)
	default:
		out.Printf("%s: password %s\n", name, password)
	}
	_, err = client.UserGrantRole(ctx, name, name)
	return err
}
