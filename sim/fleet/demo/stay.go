package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fleet"
)

// stay keeps the fleet running until ctx ends, and reports processes that end.
// It returns an error when no proxy is left.
func (t *tour) stay(ctx context.Context) error {
	t.say("\nThe fleet runs until Ctrl-C. Its processes:\n")
	running := t.fleet.Running()
	addresses := t.addresses()
	for _, p := range running {
		t.say("  %-15s  %-21s  pid %d", p.Name(), addresses[p.Name()], p.PID())
	}
	t.commands()
	t.say("\nLogs: %s", filepath.Join(t.fleet.Dir(), "logs"))

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan *fleet.Process, len(running))
	for _, p := range running {
		go func() { // ends with the process, or with stay
			select {
			case <-p.Done():
				ended <- p
			case <-ctx.Done():
			}
		}()
	}
	proxies := len(t.proxies)
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			how := "exit code 0"
			if p.Err() != nil {
				how = p.Err().Error()
			}
			t.say("%s has ended: %s", p.Name(), how)
			if slices.ContainsFunc(t.proxies, func(proxy *fleet.Proxy) bool { return proxy.Process == p }) {
				if proxies--; proxies == 0 {
					return fmt.Errorf("no proxy is left: %w; last log lines of %s:\n%s", errors.Join(fleet.ErrExited, p.Err()), p.Name(), indent(p.LogTail(15)))
				}
			}
		}
	}
}

// addresses returns where each process listens, by its name. Agents listen on a
// local socket only.
func (t *tour) addresses() map[string]string {
	out := make(map[string]string)
	for _, m := range t.etcd {
		out[m.Name()] = m.Spec.Client
	}
	for _, p := range t.proxies {
		out[p.Name()] = p.Address
	}
	for _, n := range t.nodes {
		out[n.Spec.Name] = n.Address
	}
	return out
}

// commands prints commands to paste into another terminal.
func (t *tour) commands() {
	proxy, pdctl := t.proxies[0], filepath.Join(t.o.bin, "pdctl")
	etcd := "--etcd-endpoints " + strings.Join(t.endpoints, ",")
	t.say("\nCommands to try in another terminal:\n")
	t.say("  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":\"%s\",\"stream\":true,\"max_tokens\":40,\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}'",
		t.proxies[len(t.proxies)-1].URL(), model)
	t.say("  curl %s/status", proxy.URL())
	t.say("  curl %s/metrics", proxy.URL())
	t.say("  %s list %s", pdctl, etcd)
	t.say("  %s watch %s", pdctl, etcd)
	t.say("  %s drain prefill %s --wait %s", pdctl, t.nodes[0].Address, etcd)
	t.say("  %s undrain prefill %s %s", pdctl, t.nodes[0].Address, etcd)
	t.say("  curl %s/instances/remove -H 'X-Api-Key: %s' -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"type\":\"prefill\",\"instance\":\"%s\"}'    # the admin key of this fleet", proxy.URL(), t.key, t.nodes[1].Address)
	t.say("  kill -9 %d    # %s", t.nodes[0].Engine.PID(), t.nodes[0].Spec.Name)
	if len(t.etcd) > 1 {
		last := t.etcd[len(t.etcd)-1]
		t.say("  kill -9 %d    # %s", last.PID(), last.Name())
	}
	if len(t.proxies) > 1 {
		last := t.proxies[len(t.proxies)-1]
		t.say("  kill -9 %d    # %s", last.PID(), last.Name())
	}
	t.say("\nDashboard: %s/", proxy.URL())
}
