package docs_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

var (
	available = regexp.MustCompile(`(?s)\nAvailable Commands:\n(.*?)\n\n`)
	global    = regexp.MustCompile(`(?s)\n\nGlobal Flags:\n.*`)
	last      = regexp.MustCompile(`\n\nUse ".*" for more information about a command\.`)
)

// The page of the command lines is what the programs print. With -update it is written.
func TestCommandLinePage(t *testing.T) {
	t.Parallel()
	var page strings.Builder
	page.WriteString("# Command lines\n\nThis page has the output of `--help`. `make reference` writes it from the programs, and a test compares it with them. Do not edit\n" +
		"it by hand. [cli.md](../cli.md) describes how to use `pdctl`, and [agent.md](../agent.md) the agent.\n\n" +
		"The flags of `pdctl` for etcd are listed only once, with `pdctl` itself. Every command accepts them.\n")
	for _, program := range []string{"proxy", "agent", "pdctl"} {
		describe(t, &page, program)
	}
	testkit.Golden(t, filepath.Join(root, "docs", "reference", "cli.md"), []byte(page.String()))
}

// describe writes what a command prints about itself, and then those below it.
func describe(t *testing.T, page *strings.Builder, command ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(binDir, command[0]), append(slices.Clone(command[1:]), "--help")...).Output()
	if err != nil {
		t.Fatalf("%v --help: %v", command, err)
	}
	text := string(out)
	below := available.FindStringSubmatch(text)
	text = last.ReplaceAllString(strings.TrimSpace(text), "")
	if len(command) > 1 {
		text = global.ReplaceAllString(text, "")
	}
	fmt.Fprintf(page, "\n%s %s\n\n```text\n%s\n```\n", strings.Repeat("#", min(len(command), 2)+1), strings.Join(command, " "), text)
	if below == nil {
		return
	}
	for line := range strings.Lines(below[1]) {
		// These two are cobra's.
		if name := strings.Fields(line)[0]; name != "help" && name != "completion" {
			describe(t, page, append(slices.Clone(command), name)...)
		}
	}
}
