package observe_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/collector"
	"github.com/pdmesh/pdmesh/test/harness"
)

// A route and signals change the log level. The embedded etcd, whose process has the same name (pidof returns
// both), ignores the signals.
func TestLogLevel(t *testing.T) {
	t.Parallel()
	f := harness.NewFleet(t, binDir)
	proxy, err := f.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy", AdminKey: "k"})
	require.NoError(t, err)
	ask := func(method, body string) string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, text, err := harness.Send(ctx, method, proxy.URL()+"/log-level", body, "X-Api-Key", "k")
		require.NoError(t, err)
		var answer struct{ Level string }
		require.NoError(t, json.Unmarshal([]byte(text), &answer))
		return answer.Level
	}
	assert.Equal(t, "warn", ask(http.MethodPut, `{"level":"warn"}`), "level")
	for _, step := range []struct {
		signal syscall.Signal
		want   string
	}{{syscall.SIGUSR2, "info"}, {syscall.SIGUSR1, "debug"}, {syscall.SIGUSR1, "trace"}, {syscall.SIGUSR2, "info"}} {
		for _, pid := range append(children(t, proxy.PID()), proxy.PID()) {
			require.NoError(t, syscall.Kill(pid, step.signal))
		}
		testkit.EventuallyEqual(t, patience, func() string { return ask(http.MethodGet, "") }, step.want, "level")
	}
	if n := harness.Metric(t, proxy.URL(), "pd_etcd_embedded_ends_total"); n != 0 || harness.Metric(t, proxy.URL(), "pd_etcd_embedded_up") != 1 {
		t.Errorf("the embedded etcd has exited %v times", n)
	}
}

// children returns the children of a process, at least one.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is valid
	for _, list := range lists {
		for field := range strings.FieldsSeq(read(t, list)) {
			child, err := strconv.Atoi(field)
			require.NoError(t, err)
			pids = append(pids, child)
		}
	}
	require.NotEmpty(t, pids, "no embedded etcd is running")
	return pids
}

// A proxy with the usual settings sends traces to a collector: one tree for each request, with both legs in
// it.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := collector.Start(t)
	f := harness.NewFleet(t, binDir)
	ctx := t.Context()
	proxy, err := f.StartProxy(ctx, fleet.ProxySpec{
		Name: "proxy", AdminKey: "k", Args: []string{"--connector", "nixl", "--otlp-endpoint", c.URL, "--trace-sample", "1"},
		Env: []string{"OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_RESOURCE_ATTRIBUTES=service.name=ours,deployment.environment.name=test"},
	})
	require.NoError(t, err)
	for _, role := range []instance.Role{instance.Prefill, instance.Decode} {
		if _, err := f.StartNode(ctx, fleet.NodeSpec{Name: string(role), Role: role, Connector: "nixl", Model: harness.Model, Etcd: proxy.Etcd}); err != nil {
			t.Fatal(err)
		}
	}
	require.NoError(t, proxy.WaitFor(ctx, 1, 1))
	require.NoError(t, harness.Complete(ctx, harness.NewClient(t, "k"), proxy.URL(), "hello", 8).Err)
	tree := func() map[string]collector.Span {
		found := map[string]collector.Span{}
		for _, s := range c.Spans() {
			found[s.Name] = s
		}
		return found
	}
	const root = "POST /v1/completions"
	testkit.Eventually(t, patience, func() error {
		if tree()[root].Span == nil {
			return errors.New("no span of the request has arrived")
		}
		return nil
	})
	all := tree()
	if s := all[root]; s.Parent() != "" || s.Service() != "ours" {
		t.Errorf("the request's span: %v", s)
	}
	for _, name := range []string{"pick prefill", "prefill", "kv transfer", "pick decode", "decode"} {
		s := all[name]
		assert.True(t, s.Span != nil && s.Trace() == all[root].Trace() && s.Parent() == all[root].ID(), "%s: %v", name, s)
	}
}
