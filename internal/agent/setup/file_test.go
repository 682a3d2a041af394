package setup

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func settingsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.yaml")
	testkit.WriteFile(t, path, text)
	return path
}

// Settings take precedence in this order: flag, environment, file, detected facts.
func TestFile(t *testing.T) {
	t.Parallel()
	path := settingsFile(t, "role: decode\nmodel: from-file\nttl: 20\nstrict-model: yes\nlabel: [rack=1, 'note=a,b']\netcd-endpoints: 10.0.0.1:2379\nrestart-delay: 2s\n")
	c, err := loadArgs(t, map[string]string{"PD_MODEL": "from-env", envConfig: path, "PD_CONFIG": "/nowhere/of-the-proxy.yaml"},
		"--role=prefill", "--host-id=h", "--", "vllm", "serve", "M", "--host", "10.0.0.7", "--kv-transfer-config", nixlBoth)
	require.NoError(t, err)
	if c.Key.String() != "prefill/10.0.0.7:8000" || c.Model != "from-env" || c.TTL != 20*time.Second || !c.StrictModel || c.RestartDelay != 2*time.Second {
		t.Errorf("%+v", c)
	}
	assert.Empty(t, cmp.Diff(map[string]string{"rack": "1", "note": "a,b", "kv_connector": "NixlConnector"}, c.labels))
	assert.Equal(t, "file "+path, c.values.Sources["ttl"], "source of ttl")
	// A setting in a file, as in the environment, may be meant for other agents.
	_, err = loadArgs(t, nil, "--config", path, "--address=10.0.0.7:1")
	assert.NoError(t, err)
}

func TestFileRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"rol: prefill\n":               `line 1: unknown key "rol"; did you mean "role"?`,
		"etcd_endpoints: [h:1]\n":      `unknown key "etcd_endpoints"; did you mean "etcd-endpoints"?`,
		"admin-listen: 127.0.0.1:1\n":  `unknown key "admin-listen"; the names are those of the flags`,
		"ttl: soon\n":                  `agent.yaml): bad value "soon"`,
		"role: prefil\naddress: h:1\n": `agent.yaml): unknown role "prefil"`,
	} {
		_, err := loadArgs(t, nil, "--config", settingsFile(t, text))
		assert.True(t, err != nil && strings.Contains(err.Error(), want), "%q: %q is not in %v", text, want, err)
	}
}

// The output of --print-config is a file with the same settings.
func TestPrintConfig_RoundTrip(t *testing.T) {
	t.Parallel()
	lmcache := settingsFile(t, "enable_pd: true\npd_role: receiver\npd_peer_host: 10.0.0.7\npd_peer_init_port: [7300]\npd_peer_alloc_port: [7400]\n")
	for _, args := range [][]string{
		{"--role=prefill", "--address=10.0.0.7:8100", "--etcd-endpoints=https://10.0.0.1:2379,https://10.0.0.2:2379", "--label=note=a,b", "--label", "#=: x ", "--kv-lease=0", "--probe-interval=1.5", "--strict-model"},
		{"--etcd-endpoints=127.0.0.1:1", "--", "vllm", "serve", "M", "--port=8100", "-dp=2", "--kv-transfer-config", nixlProducer},
		{"--", "vllm", "serve", "M", "--kv-transfer-config", mooncakeProducer},
		{"--role=decode", "--address=127.0.0.1:8200", "--connector=lmcache", "--lmcache-config=" + lmcache},
		{"--role=both", "--address=127.0.0.1:8200", "--connector=p2p", "--etcd-password=secret", "--etcd-username=u", "--engine-api-key=secret"},
		{"--zmq-register=tcp://10.0.0.5:36367", "--etcd-endpoints=10.0.0.1:2379", "--allow-loopback"},
	} {
		args = append([]string{"--host-id=h"}, args...)
		// Secrets are not in the file, and are set again from the environment.
		env := map[string]string{"PD_ETCD_PASSWORD": "secret", "PD_ENGINE_API_KEY": "secret"}
		if !strings.Contains(strings.Join(args, " "), "secret") {
			env = nil
		}
		want, err := loadArgs(t, nil, args...)
		require.NoError(t, err, args)
		want.Side.Release()
		var out bytes.Buffer
		require.NoError(t, want.Print(&out))
		again := []string{"--config", settingsFile(t, out.String())}
		if want.Command != nil {
			again = append(append(again, "--"), want.Command...)
		}
		got, err := loadArgs(t, env, again...)
		if err != nil {
			t.Errorf("%q: %v\n%s", args, err, &out)
			continue
		}
		got.Side.Release()
		if want.Side.Chosen {
			got.Side.port = want.Side.port // chosen again; another process may use the first one now
		}
		d := cmp.Diff(want, got, cmp.AllowUnexported(Config{}, sideChannel{}, Secured{}, kvEvents{}, claim{}),
			cmpopts.IgnoreFields(Config{}, "values", "Notes"))
		assert.Equal(t, "", d, "%q (-printed +read)\n%s\n%s", args, d, &out)
		assert.NotContains(t, out.String(), "secret", "%q shows a secret\n%s", args, &out)
	}
}
