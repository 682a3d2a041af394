package settings_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// An unknown variable is an error that names the one that was probably meant.
// Variables that Kubernetes and Docker set for services are ignored.
func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		environ []string
		says    []string
	}{
		{"known", []string{"PATH=/bin", "PD_ETCD_PREFIX=/x", "PD_ROLE=prefill", "PD_PDCTL_CONFIG=x", "PD_TEST_BIN=/x"}, nil},
		{"empty", []string{"PD_ETCD_PREFIXX="}, nil},
		{"misspelt", []string{"PD_ETCD_PREFIXX=/x"}, []string{"unknown environment variable PD_ETCD_PREFIXX; did you mean PD_ETCD_PREFIX?"}},
		{"case", []string{"PD_etcd-prefix=/x"}, []string{"unknown environment variable PD_etcd-prefix; did you mean PD_ETCD_PREFIX?"}},
		{"two", []string{"PD_WHAT_IS_THIS=1", "PD_HOTS=x"}, []string{"unknown environment variable PD_HOTS; did you mean PD_HOST?", "unknown environment variable PD_WHAT_IS_THIS"}},
		{"services of Kubernetes", []string{
			"PD_PROXY_SERVICE_HOST=10.0.0.1", "PD_PROXY_SERVICE_PORT=8000", "PD_PROXY_SERVICE_PORT_HTTP=8000", "PD_PROXY_PORT=tcp://10.0.0.1:8000",
			"PD_PROXY_PORT_8000_TCP=tcp://10.0.0.1:8000", "PD_PROXY_PORT_8000_TCP_PROTO=tcp", "PD_PROXY_PORT_8000_TCP_PORT=8000", "PD_PROXY_PORT_8000_TCP_ADDR=10.0.0.1",
			"PD_PORT=tcp://10.0.0.1:8000", "PD_SERVICE_HOST=10.0.0.1",
		}, nil},
		{"no service", []string{"PD_PROXY_PORT=8000"}, []string{"PD_PROXY_PORT"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := settings.CheckVariables(tc.environ)
			if len(tc.says) == 0 {
				assert.NoError(t, err)
				return
			}
			testkit.Contains(t, fmt.Sprint(err), tc.says...)
		})
	}
}

// A Kubernetes service "pd" does not set the port.
func TestLookupEnv(t *testing.T) {
	t.Setenv("PD_PORT", "tcp://10.0.0.1:8000")
	t.Setenv("PD_ETCD_PREFIX", "/x")
	t.Setenv("PD_ZMQ_REGISTER", "tcp://10.0.0.1:8000")
	for name, want := range map[string]string{"PD_PORT": "", "PD_ETCD_PREFIX": "/x", "PD_ZMQ_REGISTER": "tcp://10.0.0.1:8000"} {
		got, ok := settings.LookupEnv(name)
		assert.True(t, got == want && ok == (want != ""), "%s: %q %v", name, got, ok)
	}
}

// Flags that are not settings parse durations as settings do.
func TestDurationFlag(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"90": "1m30s", "1.5": "1.5s", "2h": "2h0m0s", "0": "0s"} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		var d time.Duration
		settings.DurationVar(fs, &d, "for", time.Hour, "")
		err := fs.Parse([]string{"--for", text})
		assert.True(t, err == nil && d.String() == want, "%s: %s, %v", text, d, err)
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	settings.DurationVar(fs, new(time.Duration), "for", 0, "")
	assert.ErrorContains(t, fs.Parse([]string{"--for", "soon"}), "or a number of seconds")
}
