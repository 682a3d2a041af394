// Package deploy_test checks files for programs that may not be installed here:
// docker-compose.yml, the Dockerfile and the systemd units.
package deploy_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// flag returns the value of the argument --name=value, or an empty string.
func flag(command []string, name string) string {
	for _, arg := range command {
		if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return v
		}
	}
	return ""
}

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
	p := whole(t)
	checks := map[string][]string{
		"etcd":  {"CMD", "etcdctl", "--endpoints=http://127.0.0.1:2379", "endpoint", "health"},
		"proxy": {"CMD", "proxy", "health"},
		"agent": {"CMD", "agent", "health"},
	}
	for name, s := range p.Services {
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s to the whole network", name, port)
			}
		}
		if s.Restart != "unless-stopped" {
			t.Errorf("%s: restart %q", name, s.Restart)
		}
		want, ok := checks[program(s)]
		if ok && !slices.Equal(s.Healthcheck.Test, want) {
			t.Errorf("%s: health check %+v, want %q", name, s.Healthcheck, want)
		}
		if s.Image == image {
			if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") || !slices.Contains(s.Tmpfs, "/tmp") {
				t.Errorf("%s is not confined", name)
			}
		}
		if program(s) == "agent" && s.StopGracePeriod <= 2*time.Minute {
			t.Errorf("%s: stop_grace_period %v is shorter than its drain of two minutes", name, s.StopGracePeriod)
		}
	}
}

// image is the image that the Dockerfile builds.
const image = "pdmesh:latest"

// The settings of the services without a profile are consistent.
func TestComposeFleet(t *testing.T) {
	t.Parallel()
	p := whole(t)
	const endpoints = "etcd-1:2379,etcd-2:2379,etcd-3:2379"
	kinds := map[string]int{}
	for name, s := range p.Services {
		if len(s.Profiles) > 0 {
			continue
		}
		switch program(s) {
		case "agent":
			kinds["agent of "+flag(s.Command, "role")]++
			checkAgent(t, p, name, endpoints)
		case "proxy":
			kinds["proxy"]++
			if got := flag(s.Command, "etcd-endpoints"); got != endpoints || s.Environment["PD_ETCD_ENDPOINTS"] != endpoints {
				t.Errorf("%s uses etcd at %s, want %s", name, got, endpoints)
			}
			if !slices.Equal(s.Volumes, []string{name + ":" + flag(s.Command, "state-dir")}) {
				t.Errorf("%s has its state in %s, its volumes are %v", name, flag(s.Command, "state-dir"), s.Volumes)
			}
			allow, subnet := flag(s.Command, "instance-allow"), p.Networks["fleet"].IPAM.Config[0].Subnet
			if allow != subnet {
				t.Errorf("%s allows instances in %s, want the network %s", name, allow, subnet)
			}
			if len(s.Ports) != 1 || !strings.HasSuffix(s.Ports[0], ":"+s.Environment["PD_PORT"]) {
				t.Errorf("%s publishes %v and listens on port %s", name, s.Ports, s.Environment["PD_PORT"])
			}
		case "etcd":
			kinds["etcd"]++
			for flagName, want := range map[string]string{
				"name":                        name,
				"advertise-client-urls":       "http://" + name + ":2379",
				"initial-advertise-peer-urls": "http://" + name + ":2380",
				"initial-cluster":             "etcd-1=http://etcd-1:2380,etcd-2=http://etcd-2:2380,etcd-3=http://etcd-3:2380",
			} {
				if got := flag(s.Command, flagName); got != want {
					t.Errorf("%s: --%s=%s, want %s", name, flagName, got, want)
				}
			}
			if !slices.Equal(s.Volumes, []string{name + ":" + flag(s.Command, "data-dir")}) {
				t.Errorf("%s: volume %v", name, s.Volumes)
			}
		case "fakevllm":
			kinds["engine"]++
		default:
			t.Errorf("%s runs %q", name, s.Command)
		}
	}
	want := map[string]int{"etcd": 3, "proxy": 2, "engine": 4, "agent of prefill": 2, "agent of decode": 2}
	if !maps.Equal(kinds, want) {
		t.Errorf("services: %v, want %v", kinds, want)
	}
}

// checkAgent compares the settings of an agent with those of its engine.
func checkAgent(t *testing.T, p *composeProject, name, endpoints string) {
	t.Helper()
	s := p.Services[name]
	engineName, ok := strings.CutPrefix(s.NetworkMode, "service:")
	if !ok {
		t.Errorf("%s does not share the network of an engine", name)
		return
	}
	engine := p.Services[engineName]
	for _, same := range []struct{ agent, engine string }{
		{flag(s.Command, "role"), flag(engine.Command, "role")},
		{flag(s.Command, "connector"), flag(engine.Command, "mode")},
		{flag(s.Command, "model"), flag(engine.Command, "model")},
		{flag(s.Command, "address"), engineName + ":" + flag(engine.Command, "port")},
		{flag(s.Command, "engine"), "http://127.0.0.1:" + flag(engine.Command, "port")},
		{s.Environment["PD_ETCD_ENDPOINTS"], endpoints},
	} {
		if same.agent == "" || same.agent != same.engine {
			t.Errorf("%s has %q, its engine %q", name, same.agent, same.engine)
		}
	}
}

// The programs accept the command lines and the environment of the file.
func TestFlagsExist(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	programs := make(map[string]string) // name → its --help
	for name, s := range whole(t).Services {
		if s.Image != image {
			continue
		}
		program := s.Command[0]
		if _, ok := programs[program]; !ok {
			programs[program] = help(t, bin, program)
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
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), append(slices.Clone(s.Command[1:]), last)...)
		cmd.Env = []string{"HOME=" + bin}
		for key, value := range s.Environment {
			cmd.Env = append(cmd.Env, key+"="+value)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %v\n%s", name, s.Command, err, out)
		}
	}
	if len(programs) != 3 {
		t.Errorf("the programs are %v, want proxy, agent and fakevllm", programs)
	}
}

// continued matches the break of a line in the description of a flag.
var continued = regexp.MustCompile(`\n {20,}`)

// help returns the flags of a program, one per line.
func help(t *testing.T, bin, program string) string {
	t.Helper()
	path := filepath.Join(bin, program)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./cmd/"+program)
	build.Dir = root(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", program, err, out)
	}
	option := "--help-all"
	if program == "fakevllm" {
		option = "--help" // it has no other
	}
	out, err := exec.CommandContext(t.Context(), path, option).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, option, err, out)
	}
	return continued.ReplaceAllString(string(out), " ")
}

// The Dockerfile builds the programs of the compose file, without cgo and for a
// user other than root.
func TestDockerfileBuildsWhatComposeRuns(t *testing.T) {
	t.Parallel()
	raw := string(read(t, "Dockerfile"))
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(read(t, "go.mod"))
	for _, want := range []string{
		fmt.Sprintf("golang:%s ", version[1]),
		// Cross-compiled on the build platform, static, not run as root.
		"--platform=$BUILDPLATFORM", "GOARCH=$TARGETARCH", "CGO_ENABLED=0", ":nonroot", "USER nonroot",
	} {
		if !strings.Contains(raw, want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
	for _, s := range whole(t).Services {
		if s.Image != image {
			continue
		}
		for _, want := range []string{"./cmd/" + s.Command[0], "/out/" + s.Command[0]} {
			if !strings.Contains(raw, want) {
				t.Errorf("the Dockerfile has no %s", want)
			}
		}
	}
}
