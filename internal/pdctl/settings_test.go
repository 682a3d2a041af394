package pdctl_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func settingsFile(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "pdctl.yaml")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	testkit.WriteFile(t, path, text)
	return path
}

// A flag takes precedence over the environment, and the environment
// over the file. The file of --config replaces the user's file.
func TestSettingsFile(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	own := settingsFile(t, filepath.Join(home, ".config", "pdmesh"), "etcd-endpoints: 10.0.0.1:1\netcd-prefix: /own\ntimeout: 7\n")
	named := settingsFile(t, t.TempDir(), "etcd-endpoints: [https://10.0.0.2:1, https://10.0.0.3:1]\netcd-username: u\n")
	for _, tc := range []struct {
		name string
		env  map[string]string
		args []string
		want []string
	}{
		{"own", nil, nil, []string{"etcd-endpoints: ['10.0.0.1:1'] # file " + own, "etcd-prefix: /own # file " + own, "timeout: 7 # file " + own}},
		{"environment", map[string]string{"PD_ETCD_PREFIX": "/env", "OPENAI_API_KEY": "secret"}, nil, []string{"etcd-prefix: /env # environment PD_ETCD_PREFIX", "timeout: 7 #", `# engine-api-key: "********" # environment OPENAI_API_KEY`}},
		{"flag", map[string]string{"PD_ETCD_PREFIX": "/env"}, []string{"--etcd-prefix=/flag"}, []string{"etcd-prefix: /flag # flag --etcd-prefix"}},
		{"named", map[string]string{"PD_ETCD_PASSWORD": "secret"}, []string{"--config", named}, []string{"etcd-endpoints: ['https://10.0.0.2:1', 'https://10.0.0.3:1'] # file " + named, "etcd-prefix: /pd\n", "timeout: 2s\n"}},
		{"named by environment", map[string]string{"PD_PDCTL_CONFIG": named, "PD_ETCD_PASSWORD": "secret", "PD_CONFIG": "/nowhere/of-the-proxy.yaml"}, nil, []string{"etcd-username: u # file " + named}},
		{"none", nil, []string{"--config="}, []string{"etcd-prefix: /pd\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"HOME": home}
			maps.Copy(env, tc.env)
			// With or without a command, nothing is done.
			for _, args := range [][]string{{"--print-config"}, {"remove", "prefill", "10.0.0.7:1", "--print-config"}} {
				code, out, errs := execute(t.Context(), env, append(args, tc.args...)...)
				require.Equal(t, 0, code)
				require.Equal(t, "", errs)
				require.True(t, testkit.Contains(t, out, tc.want...))
				assert.NotContains(t, out, "secret")
			}
		})
	}
}

func TestSettingsFileRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"etcd-endpoint: h:1\n": `line 1: unknown key "etcd-endpoint"; did you mean "etcd-endpoints"?`,
		"output: json\n":       `unknown key "output"`, // a flag of each command, because formats differ
		"etcd-endpoints: h\n":  "pdctl.yaml): invalid etcd endpoint",
		"timeout: 0\n":         "pdctl.yaml): 0s: must be more than zero",
	} {
		code, _, errs := execute(t.Context(), nil, "list", "--config", settingsFile(t, t.TempDir(), text))
		assert.True(t, code == 2 && strings.Contains(errs, want),
			"%q: exit %d, %q is not in %q", text, code, want, errs)
	}
	code, _, errs := execute(t.Context(), nil, "list", "--etcd_prefix=/x")
	assert.True(t, code == 2 && strings.Contains(errs, "did you mean --etcd-prefix?"), "exit %d, %q", code, errs)
}

// drain has a separate --timeout, which is not a setting.
func TestTimeoutOfDrain(t *testing.T) {
	t.Parallel()
	code, out, errs := execute(t.Context(), map[string]string{"PD_TIMEOUT": "5s"}, "drain", "prefill", "10.0.0.7:1", "--wait", "--timeout=9m", "--print-config")
	assert.True(t, code == 0 && strings.Contains(out, "timeout: 5s # environment PD_TIMEOUT"),
		"exit %d: %s%s", code, out, errs)
}

// completes waits until the completion of a command line offers want.
// Completion offers nothing while etcd does not answer within a second.
func (r *rig) completes(want string, args ...string) {
	r.t.Helper()
	testkit.Eventually(r.t, patience, func() error {
		_, out, _ := r.run(append([]string{"__complete"}, args...)...)
		names, _, _ := strings.Cut(out, ":4") // the directive: no files
		if got := strings.Join(strings.Fields(names), " "); got != want {
			return fmt.Errorf("%q: %q, want %q", args, got, want)
		}
		return nil
	})
}

// Completion offers the roles, then the addresses in etcd that are not yet on the command line.
func TestCompletion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.put("/pd/decode/10.0.0.1:8200", "")
	r.put("/pd/decode/10.0.0.2:8200", "")
	r.put("/pd/prefill/10.0.0.3:8100", "")
	r.put("/pd/decode/$(touch x):1", "") // no address, and unsafe in a shell
	r.put("/pd/decode/--force", "")
	for _, tc := range []struct{ args, want string }{
		{"drain ", "prefill decode both"},
		{"history ", "prefill decode"},
		{"drain decode ", "10.0.0.1:8200 10.0.0.2:8200"},
		{"drain decode 10.0.0.1:8200 ", "10.0.0.2:8200"},
		{"uncordon both ", "10.0.0.3:8100 10.0.0.1:8200 10.0.0.2:8200"},
		{"weight prefill ", "10.0.0.3:8100"},
		{"remove decode ", "10.0.0.1:8200 10.0.0.2:8200"},
		{"drain nonsense ", ""},
	} {
		r.completes(tc.want, strings.Split(tc.args, " ")...)
	}
}
