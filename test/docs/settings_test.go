package docs_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const settingsPage = `# Settings

` + "`make reference`" + ` writes this page from the tables of the programs, and a test compares it with them. Do not edit it by hand.

Each setting has one name. The flag ` + "`--etcd-prefix`" + ` is also the variable ` + "`PD_ETCD_PREFIX`" + `, and the key ` + "`etcd-prefix`" + ` in the YAML
file of ` + "`--config`" + `. Flags win over variables, variables over the file, and the file over the default. An empty variable
counts as not set. An unknown key, or a variable ` + "`PD_...`" + ` that none of the programs has, is an error; the message names the most
similar one. Variables that Kubernetes or Docker set for a service, such as ` + "`PD_PROXY_PORT=tcp://10.0.0.1:8000`" + `, do not count.

` + "`--print-config`" + ` prints all values, each with its source. ` + "`--config`" + ` can read the output as a file.
Secrets are masked and commented out.

| takes | written as |
|---|---|
| string | the text itself |
| number | ` + "`4`" + ` |
| size | ` + "`33554432`, `512KiB`, `64MiB`" + ` |
| duration | ` + "`500ms`, `30s`, `5m`" + `, or a number of seconds |
| on\|off | ` + "`on`, `off`" + `, also ` + "`true`, `yes`, `1` and `false`, `no`, `0`" + `; the flag alone is ` + "`on`" + ` |
| list | ` + "`a,b`" + `, the flag repeated, or a list in the file |
| item | like a list, but the value of a flag is one item, which may contain commas |
| json list | ` + "`[\"a\",\"b\"]`" + ` or ` + "`a,b`" + `, or a list in the file |
`

// The page of the settings is generated from the tables. With -update it is written.
func TestSettingsPage(t *testing.T) {
	t.Parallel()
	var page strings.Builder
	page.WriteString(settingsPage)
	var variables []string
	for _, p := range []struct {
		name, about string
		table       settings.Table
	}{
		{"pdmesh-proxy", "The proxy also accepts the flags of the example proxies; [migrate](../migrate/README.md) lists them.", new(config.Proxy).Settings()},
		{"pdmesh-agent", "The agent looks for missing settings in the engine's command and environment before it uses the default ([agent.md](../agent.md#where-settings-are-found)).", setup.Settings()},
		{"pdctl", "`--config` names the file. The default is `pdmesh/pdctl.yaml` in `$XDG_CONFIG_HOME` or `~/.config`, if it exists; `--config=` reads no file. The settings for engines are for `add` and `doctor`. All other flags belong to one command; [cli.md](cli.md) has them.", session.New(nil, nil, nil).Settings()},
	} {
		if i := slices.IndexFunc(p.table, func(s settings.Setting) bool { return s.Group == "" }); i >= 0 {
			t.Errorf("%s: --%s has no group", p.name, p.table[i].Name)
		}
		page.WriteString("\n## " + p.name + "\n\n" + p.about + "\n" + reference(p.table))
		for _, s := range p.table {
			variables = append(variables, s.Variables()...)
		}
	}
	variables = slices.DeleteFunc(variables, func(v string) bool { return !strings.HasPrefix(v, "PD_") })
	slices.Sort(variables)
	testkit.Golden(t, filepath.Join(root, "internal", "cli", "settings", "variables.txt"), []byte(strings.Join(slices.Compact(variables), "\n")+"\n"))
	testkit.Golden(t, filepath.Join(root, "docs", "reference", "settings.md"), []byte(page.String()))
}

// reference returns a table as Markdown, with a heading for each group.
func reference(t settings.Table) string {
	var out strings.Builder
	for i, group := 0, "\x00"; i < len(t); i++ {
		s := t[i]
		if s.Hidden {
			continue
		}
		if s.Group != group {
			group = s.Group
			out.WriteString("\n### " + group + "\n\n| setting | takes | default | variable | |\n|---|---|---|---|---|\n")
		}
		name := code(s.Name)
		if s.FlagOnly {
			name = code("--" + s.Name)
		} else if s.Short != "" {
			name += ", " + code("-"+s.Short)
		}
		var variables []string
		for _, v := range s.Variables() {
			variables = append(variables, code(v))
		}
		def := ""
		if s.Default != "" {
			def = code(s.Default)
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", name, plain(string(s.Kind)), def, strings.Join(variables, ", "), plain(s.Usage))
	}
	return out.String()
}

// code returns the text of a cell as code.
func code(text string) string { return "`" + strings.ReplaceAll(text, "|", `\|`) + "`" }

// plain escapes the text of a cell.
func plain(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "[", `\[`).Replace(text)
}
