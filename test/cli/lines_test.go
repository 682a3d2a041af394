package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// helps are the examples of every command's help, by what was asked for it.
func helps(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	var look func(words ...string)
	look = func(words ...string) {
		help, err := exec.CommandContext(t.Context(), filepath.Join(binDir, "pdctl"), append(words, "--help")...).Output()
		if err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		name := strings.Join(append([]string{"pdctl"}, words...), " ")
		out[name] = section(string(help), "Examples:")
		for _, line := range section(string(help), "Available Commands:") {
			if sub, _, _ := strings.Cut(line, " "); sub != "help" && sub != "completion" { // cobra's own
				look(append(slices.Clip(words), sub)...)
			}
		}
	}
	look()
	return out
}

// section are the lines below a heading of a help.
func section(help, heading string) (lines []string) {
	_, rest, _ := strings.Cut(help, "\n"+heading+"\n")
	rest, _, _ = strings.Cut(rest, "\n\n")
	for line := range strings.Lines(rest) {
		lines = append(lines, bare(line))
	}
	return lines
}

// behind is a remark at a line's end.
var behind = regexp.MustCompile(`\s+# .*`)

func bare(line string) string { return strings.TrimSpace(behind.ReplaceAllString(line, "")) }

// blocks are the lines of a page's blocks of shell.
func blocks(t *testing.T, page string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(text), "```") {
		if i%2 == 0 || !strings.HasPrefix(block, "sh\n") {
			continue
		}
		for line := range strings.Lines(strings.TrimPrefix(block, "sh\n")) {
			if line = bare(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
