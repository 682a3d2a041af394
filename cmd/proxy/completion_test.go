package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, want string }{
		{"completion bash", "complete -o default -F __start_pdmesh-proxy pdmesh-proxy"},
		{"completion zsh", "#compdef pdmesh-proxy"},
		{"completion fish", "complete -c pdmesh-proxy"},
		{"__complete he", "health\t"},
		{"__complete --etcd-en", "--etcd-endpoints\t"},
		{"__complete --prefill 10.0.0.1:8100 --dec", "--decode\t"},
		{"__complete health --", "--live\t"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(tc.args), os.LookupEnv, &out, &errs); code != 0 || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: exit %d, %q is not in\n%.2000s%s", tc.args, code, tc.want, &out, &errs)
		}
	}
}
