package docs_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/agent/setup"
	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/internal/settings"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const settingsPage = `# Settings

This page is made from the tables of the programs. ` + "`make reference`" + ` writes it, and a test holds it to them. Do not edit it by hand.

Each setting has one name. The flag ` + "`--etcd-prefix`" + ` is the variable ` + "`PD_ETCD_PREFIX`" + ` and, in the YAML file of ` + "`--config`" + `, the
key ` + "`etcd-prefix`" + `. A flag wins over a variable, that over the file, that over the default. A variable that is set but empty counts
as not set. A key that no setting has is an error, which names the one that was probably meant.

` + "`--print-config`" + ` prints what is in force, and behind each value where it is from. What it prints is a file that ` + "`--config`" + ` takes.
Secrets are masked and commented out: they are not in that file.

| takes | is written |
|---|---|
| string | as it is |
| number | ` + "`4`" + ` |
| size | ` + "`33554432`, `512KiB`, `64MiB`" + ` |
| duration | ` + "`500ms`, `30s`, `5m`" + `, or a number of seconds |
| on\|off | ` + "`on`, `off`" + `, also ` + "`true`, `yes`, `1` and `false`, `no`, `0`" + `; the flag alone is ` + "`on`" + ` |
| list | ` + "`a,b`" + `, the flag repeated, or a list in the file |
| item | the same, but a flag's value is one item, which may have commas |
| json list | ` + "`[\"a\",\"b\"]`" + ` or ` + "`a,b`" + `, or a list in the file |
`

// The page of the settings is made from the tables. With -update it is written.
func TestSettingsPage(t *testing.T) {
	t.Parallel()
	var page strings.Builder
	page.WriteString(settingsPage)
	for _, p := range []struct {
		name, about string
		table       settings.Table
	}{
		{"proxy", "The flags of the example proxies are taken besides; [migrate](../migrate/README.md) has them.", new(config.Proxy).Settings()},
		{"agent", "The agent looks for missing settings in the engine's command and environment before it uses the default ([agent.md](../agent.md#where-settings-are-found)).", setup.Settings()},
		{"pdctl", "The file is that of `--config`, else `pdmesh/pdctl.yaml` in `$XDG_CONFIG_HOME` or `~/.config`, if it is there; `--config=` reads none. What engines are asked with is for `add` and `doctor`. All other flags are said with the command.", pdctl.Settings()},
	} {
		page.WriteString("\n## " + p.name + "\n\n" + p.about + "\n" + p.table.Reference(3))
	}
	testkit.Golden(t, filepath.Join(root, "docs", "reference", "settings.md"), []byte(page.String()))
}
