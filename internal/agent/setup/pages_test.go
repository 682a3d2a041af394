package setup

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// TestMoRIIOPage_Commands parses the page's commands for agents
// and engines, and compares its table of flags with the code.
func TestMoRIIOPage_Commands(t *testing.T) {
	t.Parallel()
	text := testkit.ReadFile(t, "../../../docs/connectors/moriio.md")
	none := func(string) (string, bool) { return "", false }
	agents, engines := 0, 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if args, ok := strings.CutPrefix(line, "pdmesh-agent -"); ok {
			agents++
			fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
			Settings().Register(fs)
			require.NoError(t, fs.Parse(strings.Fields("-"+args)))
			c, err := Load(fs, none, nil)
			assert.True(t, err == nil && c.ZMQRegister != "" && c.Key.Role == "", "%s: %+v, %v", line, c.Key, err)
		}
		if _, found, ok := strings.Cut(line, "--kv-transfer-config '"); ok {
			engines++
			var transfer struct {
				Connector string            `json:"kv_connector"`
				Role      string            `json:"kv_role"`
				Extra     map[string]string `json:"kv_connector_extra_config"`
			}
			require.NoError(t, json.Unmarshal([]byte(strings.TrimSuffix(found, "'")), &transfer), line)
			port := transfer.Extra["http_port"]
			if transfer.Connector != "MoRIIOConnector" || transfer.Role == "" || transfer.Extra["proxy_ping_port"] != "36367" || !strings.Contains(line, "--port "+port+" ") {
				t.Errorf("%s: %+v", line, transfer)
			}
		}
		if strings.HasPrefix(line, "| `--") {
			cell := strings.Split(line, "|")[1]
			for name := range strings.SplitSeq(cell, ",") {
				fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
				Settings().Register(fs)
				name = strings.Trim(name, " `-")
				assert.True(t, fs.Lookup(name) != nil, "there is no flag --%s", name)
			}
		}
	}
	assert.True(t, agents == 3 && engines == 2, "%d commands of agents, %d of engines", agents, engines)
}

func TestZMQRegister_EngineFlagsRefused(t *testing.T) {
	t.Parallel()
	none := func(string) (string, bool) { return "", false }
	for args, want := range map[string]string{
		"--zmq-register 127.0.0.1:36367":                          "want tcp://host:port",
		"--zmq-register tcp://127.0.0.1:36367 --role prefill":     "--role",
		"--zmq-register tcp://127.0.0.1:36367 --address a:1":      "--address",
		"--zmq-register tcp://127.0.0.1:36367 --connector nixl":   "--connector",
		"--zmq-register tcp://127.0.0.1:36367 --bootstrap-port 1": "--bootstrap-port",
		"--zmq-register tcp://127.0.0.1:36367 --engine-ca ca.pem": "--engine-ca: is for engines with https",
		"--zmq-register tcp://127.0.0.1:36367 --restart no":       "--restart",
	} {
		fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
		Settings().Register(fs)
		require.NoError(t, fs.Parse(strings.Fields(args)))
		_, err := Load(fs, none, nil)
		assert.True(t, err != nil && strings.Contains(err.Error(), want), "%s: %v", args, err)
	}
}
