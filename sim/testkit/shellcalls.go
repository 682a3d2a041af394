package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ShellCalls returns the arguments of every call of a program in the code blocks of the
// Markdown pages that match pattern, as a shell splits them.
func ShellCalls(t *testing.T, pattern, program string) (calls [][]string) {
	t.Helper()
	pages, err := filepath.Glob(pattern)
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages %s (%v)", pattern, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for i, block := range strings.Split(string(text), "\n```") {
			if i%2 == 0 || !strings.HasPrefix(block, "\n") && !strings.HasPrefix(block, "sh\n") {
				continue
			}
			_, lines, _ := strings.Cut(block, "\n")
			// A PATH without programs keeps the shell from running other commands of the block.
			script := "PATH=/nowhere\n" +
				program + `() { printf '%s\0' "$@"; printf '\n\0'; }` + "\n" + lines + "\ntrue\n"
			out, err := exec.CommandContext(t.Context(), "bash", "-c", script).Output()
			require.NoError(t, err, "%s in\n%s", page, lines)
			for call := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\n\x00") {
				if call = strings.Trim(call, "\n"); call != "" {
					calls = append(calls, strings.Split(strings.TrimSuffix(call, "\x00"), "\x00"))
				}
			}
		}
	}
	return calls
}
