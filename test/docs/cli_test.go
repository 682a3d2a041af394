package docs_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/cli/config"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
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
		"`proxy --help-all` and `agent --help-all` also list the flags that few users need. [settings.md](settings.md) has all of them.\n\n" +
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

// Every setting has a group; --help-all lists each setting once under it, and --help those
// that are not rare.
func TestHelpGroups(t *testing.T) {
	t.Parallel()
	flag := regexp.MustCompile(`(?m)^(?:([^ \n].*):|  (?:-\w, |    )--([a-z0-9-]+).*)$`)
	for program, table := range map[string]settings.Table{"proxy": new(config.Proxy).Settings(), "agent": setup.Settings()} {
		common, all := make(map[string][]string), make(map[string][]string)
		for option, groups := range map[string]map[string][]string{"--help": common, "--help-all": all} {
			out, err := exec.CommandContext(t.Context(), filepath.Join(binDir, program), option).Output()
			if err != nil {
				t.Fatalf("%s %s: %v", program, option, err)
			}
			heading := ""
			for _, m := range flag.FindAllStringSubmatch(string(out), -1) {
				if m[1] != "" {
					heading = m[1]
				} else {
					groups[m[2]] = append(groups[m[2]], heading)
				}
			}
		}
		for _, s := range table {
			if s.Group == "" {
				t.Errorf("%s: --%s has no group", program, s.Name)
			}
			inAll, inCommon := []string{s.Group}, []string{s.Group}
			if s.Hidden {
				inAll = nil
			}
			if s.Hidden || s.Rare {
				inCommon = nil
			}
			if !slices.Equal(all[s.Name], inAll) || !slices.Equal(common[s.Name], inCommon) {
				t.Errorf("%s: --%s of group %q is in %q of --help-all and in %q of --help", program, s.Name, s.Group, all[s.Name], common[s.Name])
			}
		}
		if len(common) >= len(all) {
			t.Errorf("%s: %d flags in --help, %d in --help-all", program, len(common), len(all))
		}
	}
}
