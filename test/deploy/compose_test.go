// Package deploy_test checks files for programs that may not be installed here:
// docker-compose.yml, the Dockerfile and the systemd units.
package deploy_test

import (
	"fmt"
	"net"
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
	"go.yaml.in/yaml/v3"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/leak"
	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir is the directory of the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) {
	if os.Getenv("PD_TEST_COMPOSE") != "" { // TestContainers only, on a machine that cannot build the programs
		leak.Main(m)
	}
	os.Exit(harness.Main(m, &binDir))
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root(t), name))
	require.NoError(t, err)
	return raw
}

// composeService has the keys of a service that tests read. TestContainers checks the file as a whole.
type composeService struct {
	Image, Restart  string
	Profiles        []string
	Command         []string
	Environment     map[string]string
	Ports, Volumes  []string
	Networks        yaml.Node
	ExtraHosts      []string `yaml:"extra_hosts"`
	ReadOnly        bool     `yaml:"read_only"`
	Tmpfs           []string
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	Healthcheck     struct{ Test []string }
	StopGracePeriod time.Duration `yaml:"stop_grace_period"`
}

// variable matches ${NAME:-default}.
var variable = regexp.MustCompile(`\$\{[A-Z_]+:-([^}]*)\}`)

// services returns the services of all profiles, with every variable unset.
func services(t *testing.T) map[string]composeService {
	t.Helper()
	var p struct{ Services map[string]composeService }
	require.NoError(t, yaml.Unmarshal(variable.ReplaceAll(read(t, composeFile), []byte("$1")), &p))
	require.GreaterOrEqual(t, len(p.Services), 13, "%s has %d services", composeFile, len(p.Services))
	return p.Services
}

const composeFile = "docker-compose.yml"

func program(s composeService) string {
	if len(s.Command) == 0 {
		return ""
	}
	return s.Command[0]
}

// Every service is restarted, publishes ports on loopback only, and is confined; our programs and etcd have a
// health check.
func TestComposeServices(t *testing.T) {
	t.Parallel()
	checks := map[string][]string{
		"etcd":         {"CMD", "etcdctl", "--endpoints=http://127.0.0.1:2379", "endpoint", "health"},
		"pdmesh-proxy": {"CMD", "pdmesh-proxy", "health"},
		"pdmesh-agent": {"CMD", "pdmesh-agent", "health"},
	}
	for name, s := range services(t) {
		for _, volume := range s.Volumes {
			if source, _, _ := strings.Cut(volume, ":"); strings.HasPrefix(source, "./") {
				if _, err := os.Stat(filepath.Join(root(t), source)); err != nil {
					t.Errorf("%s: %v", name, err) // Docker would mount an empty directory
				}
			}
		}
		for _, port := range s.Ports {
			assert.True(t, strings.HasPrefix(port, "127.0.0.1:"), "%s publishes %s to the whole network", name, port)
		}
		assert.Equal(t, "unless-stopped", s.Restart, "%s: restart", name)
		want, ok := checks[program(s)]
		assert.False(t, ok && !slices.Equal(s.Healthcheck.Test, want),
			"%s: health check %+v, want %q", name, s.Healthcheck, want)
		if s.Image == image {
			if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") || !slices.Contains(s.Tmpfs, "/tmp") {
				t.Errorf("%s is not confined", name)
			}
		}
		assert.False(t, program(s) == "pdmesh-agent" && s.StopGracePeriod <= 2*time.Minute,
			"%s: stop_grace_period %v is shorter than its drain of two minutes", name, s.StopGracePeriod)
	}
}

// Proxies can resolve the default addresses of all agents' engines: services, fixed addresses, or extra hosts.
func TestComposeAddresses(t *testing.T) {
	t.Parallel()
	all := services(t)
	known := map[string]bool{}
	for name, s := range all {
		known[name] = true
		var fixed map[string]struct {
			Address string `yaml:"ipv4_address"`
		}
		if s.Networks.Kind == yaml.MappingNode {
			require.NoError(t, s.Networks.Decode(&fixed))
		}
		for _, n := range fixed {
			known[n.Address] = true
		}
	}
	agents := 0
	for name, s := range all {
		for _, arg := range s.Command {
			address, ok := strings.CutPrefix(arg, "--address=")
			if !ok {
				continue
			}
			agents++
			host, _, err := net.SplitHostPort(address)
			require.NoError(t, err)
			for proxy, p := range all {
				if program(p) == "pdmesh-proxy" && !known[host] && !slices.Contains(p.ExtraHosts, host+":host-gateway") {
					t.Errorf("%s cannot resolve %s, the engine of %s", proxy, host, name)
				}
			}
		}
	}
	assert.Equal(t, 8, agents, "agents")
}

// image is the image that the Dockerfile builds.
const image = "pdmesh:latest"

// The programs accept the command lines and the environment of the file.
func TestFlagsExist(t *testing.T) {
	t.Parallel()
	programs := make(map[string]string) // name → its --help
	for name, s := range services(t) {
		if s.Image != image {
			continue
		}
		program := s.Command[0]
		if _, ok := programs[program]; !ok {
			programs[program] = help(t, program)
		}
		for _, arg := range s.Command[1:] {
			flagName, _, joined := strings.Cut(arg, "=")
			if !joined || !regexp.MustCompile(`(?m)^ .*`+regexp.QuoteMeta(flagName)+`\b`).MatchString(programs[program]) {
				t.Errorf("%s: %s has no flag %s", name, program, arg)
			}
		}
		last := "--print-config" // validates the values, and exits
		if program == "fakevllm" {
			last = "--help" // after the values are parsed
		}
		cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, program), append(slices.Clone(s.Command[1:]), last)...)
		cmd.Env = []string{"HOME=" + t.TempDir()}
		for key, value := range s.Environment {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %v\n%s", name, s.Command, err, out)
		}
	}
	assert.Len(t, programs, 3, "the programs")
}

// continued matches the break of a line in the description of a flag.
var continued = regexp.MustCompile(`\n {20,}`)

// help returns the flags of a program, one per line.
func help(t *testing.T, program string) string {
	t.Helper()
	option := "--help-all"
	if program == "fakevllm" {
		option = "--help" // it has no other
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(binDir, program), option).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, option, err, out)
	}
	return continued.ReplaceAllString(string(out), " ")
}

// The Dockerfile builds the programs of the compose file, without cgo and for a
// user other than root.
func TestDockerfile_BuildsComposePrograms(t *testing.T) {
	t.Parallel()
	raw := string(read(t, "Dockerfile"))
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(read(t, "go.mod"))
	require.True(t, testkit.Contains(t, raw,
		fmt.Sprintf("golang:%s ", version[1]),
		// Cross-compiled on the build platform, static, not run as root.
		"--platform=$BUILDPLATFORM", "GOARCH=$TARGETARCH", "CGO_ENABLED=0", ":nonroot", "USER nonroot",
	))
	for _, s := range services(t) {
		if s.Image != image {
			continue
		}
		want := "./cmd/" + strings.TrimPrefix(s.Command[0], "pdmesh-") + " "
		assert.Contains(t, raw, want, "the Dockerfile has no %s", want)
	}
}
