package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// units are the service files and the names under which systemd loads them.
var units = []struct {
	file, instance, program string
	drains                  string // flag that limits the duration of a stop
}{
	{"pdmesh-proxy.service", "pdmesh-proxy.service", "pdmesh-proxy", "shutdown-timeout"},
	{"pdmesh-agent@.service", "pdmesh-agent@decode.service", "pdmesh-agent", "drain-timeout"},
}

func unit(t *testing.T, file string) string {
	t.Helper()
	return string(read(t, filepath.Join("deploy", "systemd", file)))
}

// setting returns the last value of a setting, or an empty string.
func setting(text, name string) string {
	value := ""
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+"="); ok {
			value = strings.TrimSpace(v)
		}
	}
	return value
}

// systemd-analyze accepts the units. REQUIRE_SYSTEMD=1 makes its absence a failure.
func TestSystemdVerifies(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("REQUIRE_SYSTEMD") != "" {
			t.Fatal("REQUIRE_SYSTEMD is set, but systemd-analyze is not installed; install Debian's package systemd")
		}
		t.Skip("systemd-analyze is not installed (REQUIRE_SYSTEMD=1 makes that a failure)")
	}
	yes, err := exec.LookPath("true") // in place of an installed program
	require.NoError(t, err)
	for _, u := range units {
		path := filepath.Join(t.TempDir(), u.instance)
		text := unit(t, u.file)
		installed := "ExecStart=/usr/local/bin/" + u.program + "\n"
		verify := func(text string) (string, error) {
			require.NoError(t, os.WriteFile(path, []byte(strings.Replace(text, installed, "ExecStart="+yes+"\n", 1)), 0o600))
			out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
			return string(out), err
		}
		assert.Contains(t, text, installed, "%s: no %s", u.file, installed)
		// systemd prints a warning for an unknown setting, and still exits with 0.
		if out, err := verify(strings.Replace(text, "ProtectHome=yes", "ProtectHose=yes", 1)); !strings.Contains(out, "ProtectHose") {
			t.Errorf("%s: no warning about a misspelt setting: %v: %s", u.file, err, out)
		}
		if out, err := verify(text); err != nil || strings.Contains(out, filepath.Base(path)) {
			t.Errorf("%s: %v: %s", u.file, err, out)
		}
		// The exposure level is from 0 to 100; lower is better.
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--no-pager", "--offline=true", "--threshold=20", path).CombinedOutput()
		if err != nil {
			t.Errorf("%s is too exposed: %v\n%s", u.file, err, out)
		}
	}
}

// The timeouts of the units exceed those of the programs.
func TestSystemdStopFitsTheDrain(t *testing.T) {
	t.Parallel()
	for _, u := range units {
		text := unit(t, u.file)
		m := regexp.MustCompile(`--` + u.drains + ` duration .*\(default ([0-9smh]+)\)`).FindStringSubmatch(help(t, u.program))
		require.True(t, m != nil, "%s --help has no default of --%s", u.program, u.drains)
		drain, err := time.ParseDuration(m[1])
		require.NoError(t, err)
		stop, err := time.ParseDuration(setting(text, "TimeoutStopSec"))
		assert.True(t, err == nil && stop >= drain+10*time.Second,
			"%s: killed after %s, but %s may drain for %s (%v)", u.file, stop, u.program, drain, err)
		permanent := "2" // usage
		if u.program == "pdmesh-proxy" {
			permanent = "2 3" // and damaged files of the embedded etcd
		}
		for name, want := range map[string]string{
			"Type": "notify", "KillSignal": "SIGTERM", "KillMode": "mixed", "Restart": "on-failure",
			"RestartPreventExitStatus": permanent, "DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict",
		} {
			got := setting(text, name)
			assert.Equal(t, want, got, "%s: %s=%s, want %s", u.file, name, got, want)
		}
		if d, err := time.ParseDuration(setting(text, "WatchdogSec")); err != nil || d < 10*time.Second {
			t.Errorf("%s: watchdog %s, %v: too short for a machine under load", u.file, d, err)
		}
	}
}

// The environment variables in the comments and settings of the units correspond to flags.
func TestSystemdVariablesExist(t *testing.T) {
	t.Parallel()
	for _, u := range units {
		usage := help(t, u.program)
		names := regexp.MustCompile(`\bPD_[A-Z_]+`).FindAllString(unit(t, u.file), -1)
		assert.NotEmpty(t, names, "%s names no variable", u.file)
		for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
			flagName := "--" + strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "PD_")), "_", "-")
			assert.Contains(t, usage, flagName+" ",
				"%s: %s has no flag %s for %s", u.file, u.program, flagName, name)
		}
	}
}
