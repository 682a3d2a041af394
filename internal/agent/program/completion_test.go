package program

import (
	"bytes"
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, want string }{
		{"completion bash", "complete -o default -F __start_pdmesh-agent pdmesh-agent"},
		{"completion zsh", "#compdef pdmesh-agent"},
		{"completion fish", "complete -c pdmesh-agent"},
		{"__complete dr", "drain\t"},
		{"__complete --kv-tr", "--kv-transfer-config\t"},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(tc.args), &out, &errs); code != 0 || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: exit %d, %q is not in\n%.2000s%s", tc.args, code, tc.want, &out, &errs)
		}
	}
}
