package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/proxy/config"
)

func TestLoadListen(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	require.NoError(t, os.WriteFile(file, []byte("port: 9001\nhost: 10.0.0.1\n"), 0o600))
	// Neither a home directory nor other required settings are needed.
	other := map[string]string{"PD_ETCD_ENDPOINTS": "10.0.0.9:2379"}
	for name, tc := range map[string]struct {
		env  map[string]string
		args []string
		host string
		port int
	}{
		"default":     {other, nil, "127.0.0.1", 8000},
		"environment": {map[string]string{"PD_PORT": "9000", "PD_HOST": "0.0.0.0"}, nil, "0.0.0.0", 9000},
		"file":        {nil, []string{"--config", file}, "10.0.0.1", 9001},
		"named file":  {map[string]string{"PD_CONFIG": file}, nil, "10.0.0.1", 9001},
		"all":         {map[string]string{"PD_PORT": "9000", "PD_CONFIG": file}, []string{"--host", "::"}, "::", 9000},
		"not a port":  {map[string]string{"PD_PORT": "70000"}, nil, "", 0},
	} {
		fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
		config.RegisterProxyFlags(fs)
		require.NoError(t, fs.Parse(config.NormalizeArgs(tc.args)))
		l, err := config.LoadListen(fs, func(name string) (string, bool) { v, ok := tc.env[name]; return v, ok })
		assert.True(t, l.Host == tc.host && l.Port == tc.port && (err != nil) == (tc.port == 0),
			"%s: %s %d %v", name, l.Host, l.Port, err)
	}
}
