package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// ReadFile returns the contents of a file, or of stdin if path is "-". An unreadable file is wrong usage.
func ReadFile(ctx context.Context, path string, stdin io.Reader) ([]byte, error) {
	if path == "-" {
		return await(ctx, func() ([]byte, error) { return io.ReadAll(stdin) })
	}
	text, err := os.ReadFile(path)
	return text, cli.Wrong(err)
}

// CheckFor returns an error of usage unless --for is 0 or long enough for a lease.
func CheckFor(limit time.Duration) error {
	if limit < 0 || limit > 0 && limit < 2*time.Second {
		return cli.Wrongf("--for %s: must be 2s or more", limit)
	}
	return nil
}

// await returns the result of read, or an error if ctx ends first: a read of a terminal or pipe cannot
// be cancelled, and signals only end the context.
func await(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	var text []byte
	var err error
	done := make(chan struct{})
	go func() {
		text, err = read()
		close(done)
	}()
	select {
	case <-done:
		return text, err
	case <-ctx.Done():
		return nil, errors.New("interrupted while reading stdin")
	}
}

// Accept is a set of instances that a command accepts beyond those with a role and a valid address.
type Accept int

// The values of Accept.
const (
	BothRoles Accept = 1 << iota // the role both
	Malformed                    // malformed addresses that etcd has, so that such a key can be removed
	Fresh                        // instances that etcd does not have; without a role they are refused
)

func (a Accept) role(text string) (instance.Role, error) {
	if a&BothRoles != 0 {
		return instance.ParseRoles(text)
	}
	return instance.ParseRole(text)
}

// Named returns the instances that arguments name: "role host:port...", "role/host:port..." or
// "host:port..." of addresses that etcd has in one role only. An instance that is named twice is
// returned once. The error names every invalid argument.
func (s *Session) Named(ctx context.Context, args []string, accept Accept) ([]instance.Key, error) {
	var of instance.Role
	if role, err := accept.role(args[0]); err == nil {
		of, args = role, args[1:]
	} else if !strings.ContainsAny(args[0], ":/") {
		return nil, cli.Wrongf("%w; an instance is role/host:port, as pdctl list -o name prints it", err)
	}
	if len(args) == 0 {
		return nil, cli.Wrongf("name the instances: role/host:port, or role and host:port")
	}
	keys, bad := make([]instance.Key, 0, len(args)), []error{}
	search := false
	for _, arg := range args {
		k, err := instance.Key{Role: of, Address: arg}, error(nil)
		if before, rest, ok := strings.Cut(arg, "/"); ok {
			if role, wrong := accept.role(before); wrong == nil && (of == "" || of == role) {
				k = instance.Key{Role: role, Address: rest}
			} else if wrong == nil {
				err = fmt.Errorf("%q is not of role %s", instance.Printable(arg, 80), of)
			}
		}
		if err == nil {
			var address string
			if address, err = instance.ParseAddress(k.Address); err == nil {
				k.Address = address
			} else if accept&Malformed != 0 && k.Role != "" {
				search, err = true, nil
			}
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		if k.Role == "" && accept&Fresh != 0 {
			return nil, cli.Wrongf("%s has no role: write role/%[1]s", k.Address)
		}
		search = search || k.Role == ""
		keys = append(keys, k)
	}
	if search && len(bad) == 0 {
		if err := s.find(ctx, keys, &bad); err != nil {
			return nil, err
		}
	}
	if len(bad) > 0 {
		return nil, cli.Wrongf("%w; nothing was done", errors.Join(bad...))
	}
	var once []instance.Key
	for _, k := range keys {
		if !slices.Contains(once, k) {
			once = append(once, k)
		}
	}
	return once, nil
}

// One returns the instance that arguments name as in Named. Several instances are wrong usage.
func (s *Session) One(ctx context.Context, args []string) (instance.Key, error) {
	keys, err := s.Named(ctx, args, 0)
	if err != nil {
		return instance.Key{}, err
	}
	if len(keys) > 1 {
		return instance.Key{}, cli.Wrongf("name one instance, not %s and %s", keys[0], keys[1])
	}
	return keys[0], nil
}

// find completes the keys without a role, and checks that malformed addresses exist.
func (s *Session) find(ctx context.Context, keys []instance.Key, bad *[]error) error {
	roles := map[string][]instance.Role{}
	add := func(k instance.Key) {
		if !slices.Contains(roles[k.Address], k.Role) {
			roles[k.Address] = append(roles[k.Address], k.Role)
		}
	}
	read := func(c *Conn) error {
		snap, removals, err := c.Store.Reader.List(ctx)
		if err != nil {
			return s.Hint(err)
		}
		for _, in := range snap.All() {
			add(in.Key)
		}
		for _, r := range removals {
			add(r.Key)
		}
		return nil
	}
	if s.Proxy != "" {
		st, err := s.StatusOf(ctx, s.Proxy)
		if err != nil {
			return err
		}
		for _, l := range st.Instances {
			add(instance.Key{Role: l.Role, Address: l.Address})
		}
	} else if err := s.With(ctx, read); err != nil {
		return err
	}
	for i := range keys {
		k, has := &keys[i], roles[keys[i].Address]
		_, malformed := instance.ParseAddress(k.Address)
		switch {
		case malformed != nil && !slices.ContainsFunc(k.Each(), func(one instance.Key) bool { return slices.Contains(has, one.Role) }):
			*bad = append(*bad, malformed)
		case k.Role != "":
		case len(has) == 1:
			k.Role = has[0]
		case len(has) == 0:
			return fmt.Errorf("there is no instance %s; see pdctl list", k.Address)
		default:
			*bad = append(*bad, fmt.Errorf("%s is prefill and decode: write prefill/%[1]s or decode/%[1]s", k.Address))
		}
	}
	return nil
}
