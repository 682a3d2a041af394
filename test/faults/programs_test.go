package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// command runs a program until it exits.
func command(t testing.TB, name string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, name), args...).CombinedOutput()
	var exit *exec.ExitError
	require.False(t, err != nil && !errors.As(err, &exit), "%s %s: %v", name, strings.Join(args, " "), err)
	if exit != nil {
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}

// mustRun runs a program that must exit with 0.
func mustRun(t testing.TB, name string, args ...string) string {
	t.Helper()
	return mustExit(t, 0, name, args...)
}

func mustExit(t testing.TB, want int, name string, args ...string) string {
	t.Helper()
	out, code := command(t, name, args...)
	require.Equal(t, want, code, "%s %s: exit %d\n%s", name, strings.Join(args, " "), code, out)
	return out
}

// proxyNotReady starts a proxy that cannot become ready yet. It returns as soon as the proxy answers
// any request.
func (r *rig) proxyNotReady(args ...string) (p *fleet.Process, address string) {
	r.t.Helper()
	ports, err := fleet.FreePorts(1)
	require.NoError(r.t, err)
	address = "127.0.0.1:" + strconv.Itoa(ports[0])
	args = append([]string{"--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]), "--etcd-endpoints", strings.Join(r.etcd, ",")}, proxyArgs(args...)...)
	p, err = r.f.Start(r.t.Context(), fleet.Spec{Name: "proxy-cold", Program: "proxy", Args: args, Env: []string{"ADMIN_API_KEY=" + adminKey}})
	require.NoError(r.t, err)
	testkit.Eventually(r.t, soon, func() error {
		code, _, err := request(r.t, http.MethodGet, "http://"+address+"/livez", "")
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("%d, %w; its log:\n%s", code, err, p.LogTail(5))
		}
		return nil
	})
	return p, address
}

func request(t testing.TB, method, url, body string) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, text, err := harness.Send(ctx, method, url, body, "X-Api-Key", adminKey, "X-Pd-Trace", "1")
	if err != nil {
		return 0, "", err
	}
	return resp.StatusCode, text, nil
}

// page fetches a URL that must answer.
func page(t testing.TB, url string) (int, string) {
	t.Helper()
	c, body, err := request(t, http.MethodGet, url, "")
	require.NoError(t, err)
	return c, body
}

// try sends one completion.
func (r *rig) try(address string) (int, string) {
	r.t.Helper()
	c, body, err := request(r.t, http.MethodPost, "http://"+address+"/v1/completions",
		fmt.Sprintf(`{"model":%q,"prompt":"anybody there?","max_tokens":4}`, harness.Model))
	require.NoError(r.t, err)
	return c, body
}

// awaitAnswer waits until a proxy answers a request.
func (r *rig) awaitAnswer(address string) {
	r.t.Helper()
	testkit.Eventually(r.t, soon, func() error {
		if code, body := r.try(address); code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
}

// fleetAgent describes an additional agent for a node's engine.
func fleetAgent(n *fleet.Node, etcd, socket string, more ...string) fleet.Spec {
	return fleet.Spec{
		Name: n.Spec.Name + "-second", Program: "agent",
		Args: append([]string{
			"--role", string(n.Spec.Role), "--address", n.Address, "--etcd-endpoints", etcd, "--connector", "nixl",
			"--ttl", ttl.String(), "--allow-short-ttl", "--kv-lease", "0s", "--probe-interval", "200ms", "--socket", socket,
		}, more...),
	}
}
