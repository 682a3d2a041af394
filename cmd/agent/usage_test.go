package main

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "--role: is missing"},
		{"unknown flag", []string{"--rol", "prefill"}, "unknown flag: --rol"},
		{"argument", []string{"prefill"}, `unknown command "prefill"`},
		{"bad duration", []string{"--ttl", "x"}, "invalid argument"},
		{"prefix", []string{"--role=prefill", "--address=127.0.0.1:1", "--etcd-prefix=/"}, "invalid etcd prefix"},
		{"log level", []string{"--role=prefill", "--address=127.0.0.1:1", "--log-level=loud"}, `unknown log level "loud"`},
		{"log format", []string{"--role=prefill", "--address=127.0.0.1:1", "--log-format=xml"}, `unknown log format "xml"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			if code := run(t.Context(), tc.args, &out, &errs); code != 2 || out.Len() > 0 {
				t.Errorf("exit %d, output %q", code, &out)
			}
			if !strings.Contains(errs.String(), tc.want) || !strings.Contains(errs.String(), "See agent --help.") {
				t.Errorf("stderr %q lacks %q", &errs, tc.want)
			}
		})
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, &errs); code != 0 || !strings.Contains(out.String(), "--drain-timeout") || strings.Contains(out.String(), "short-ttl") {
		t.Errorf("--help: exit %d\n%s%s", code, &out, &errs)
	}
	out.Reset()
	if code := run(t.Context(), []string{"--version"}, &out, &errs); code != 0 || !strings.HasPrefix(out.String(), "agent 0.") {
		t.Errorf("--version: exit %d\n%s%s", code, &out, &errs)
	}
}

func TestDoesNotLinkTheEtcdServer(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "github.com/pdmesh/pdmesh/cmd/agent").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(string(out), "go.etcd.io/etcd/server") || !strings.Contains(string(out), "go.etcd.io/etcd/client/v3") {
		t.Error("the agent links the etcd server, or nothing of etcd")
	}
}
