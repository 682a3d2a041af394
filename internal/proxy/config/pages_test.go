package config_test

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/sim/testkit/require"
)

// TestCommandsOfMoRIIOPages parses every command of the proxy that the pages print.
func TestCommandsOfMoRIIOPages(t *testing.T) {
	t.Parallel()
	n := 0
	for _, page := range []string{"../../../docs/connectors/moriio.md", "../../../docs/migrate/moriio-toy-proxy.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			args, ok := strings.CutPrefix(strings.TrimSpace(line), "pdmesh-proxy ")
			if !ok || !strings.HasPrefix(args, "-") {
				continue
			}
			n++
			fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
			config.RegisterProxyFlags(fs)
			if err := fs.Parse(config.NormalizeArgs(strings.Fields(strings.ReplaceAll(args, "'", "")))); err != nil {
				t.Errorf("%s: %s: %v", page, line, err)
				continue
			}
			cfg, err := config.LoadProxy(fs, func(name string) (string, bool) { return "/home/x", name == "HOME" })
			if err != nil || !strings.HasSuffix(cfg.ZMQRegister, ":36367") {
				t.Errorf("%s: %s: %q, %v", page, line, cfg.ZMQRegister, err)
			}
		}
	}
	if n < 3 {
		t.Errorf("only %d commands were found", n)
	}
}
