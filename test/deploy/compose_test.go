// Package deploy_test checks the files that other programs read, where these
// programs may not be at hand: docker-compose.yml and the Dockerfile.
package deploy_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"go.yaml.in/yaml/v3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// compose is the part of the compose specification that the file uses; a key
// that is not here is an error, so that a misspelt one is noticed.
type compose struct {
	Name     string             `yaml:"name"`
	Services map[string]service `yaml:"services"`
	Volumes  map[string]any     `yaml:"volumes"`
	Networks map[string]struct {
		IPAM struct {
			Config []struct {
				Subnet string `yaml:"subnet"`
			} `yaml:"config"`
		} `yaml:"ipam"`
	} `yaml:"networks"`
	Extensions map[string]any `yaml:",inline"` // x-...
}

type service struct {
	Image       string               `yaml:"image"`
	Build       string               `yaml:"build"`
	Restart     string               `yaml:"restart"`
	Networks    []string             `yaml:"networks"`
	NetworkMode string               `yaml:"network_mode"`
	Command     []string             `yaml:"command"`
	Environment map[string]string    `yaml:"environment"`
	Ports       []string             `yaml:"ports"`
	Volumes     []string             `yaml:"volumes"`
	DependsOn   map[string]dependsOn `yaml:"depends_on"`
	StopGrace   string               `yaml:"stop_grace_period"`
	Healthcheck *healthcheck         `yaml:"healthcheck"`
}

type dependsOn struct {
	Condition string `yaml:"condition"`
	Restart   bool   `yaml:"restart"`
}

type healthcheck struct {
	Test     []string `yaml:"test"`
	Interval string   `yaml:"interval"`
	Timeout  string   `yaml:"timeout"`
	Retries  int      `yaml:"retries"`
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func loadCompose(t *testing.T) compose {
	t.Helper()
	f, err := os.Open(filepath.Join(root(t), "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dec := yaml.NewDecoder(f)
	dec.KnownFields(true)
	var c compose
	if err := dec.Decode(&c); err != nil {
		t.Fatal(err)
	}
	for key := range c.Extensions {
		if !strings.HasPrefix(key, "x-") {
			t.Errorf("unknown top-level key %q", key)
		}
	}
	return c
}

func TestComposeNamesExist(t *testing.T) {
	t.Parallel()
	c := loadCompose(t)
	for name, s := range c.Services {
		for other, d := range s.DependsOn {
			target, ok := c.Services[other]
			if !ok {
				t.Errorf("%s depends on %s, which does not exist", name, other)
			}
			if d.Condition == "service_healthy" && target.Healthcheck == nil {
				t.Errorf("%s waits for %s to be healthy, which has no health check", name, other)
			}
			if !slices.Contains([]string{"service_healthy", "service_started"}, d.Condition) {
				t.Errorf("%s: condition %q", name, d.Condition)
			}
		}
		for _, n := range s.Networks {
			if _, ok := c.Networks[n]; !ok {
				t.Errorf("%s is on network %s, which does not exist", name, n)
			}
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[source]; !ok {
				t.Errorf("%s mounts volume %s, which does not exist", name, source)
			}
		}
		if s.Image == "" || len(s.Command) == 0 {
			t.Errorf("%s has no image or no command", name)
		}
		if s.NetworkMode != "" {
			other, ok := strings.CutPrefix(s.NetworkMode, "service:")
			if _, exists := c.Services[other]; !ok || !exists {
				t.Errorf("%s: network_mode %q", name, s.NetworkMode)
			}
			if len(s.Networks)+len(s.Ports) > 0 {
				t.Errorf("%s shares a network namespace and must have no networks or ports of its own", name)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s to the whole network", name, p)
			}
		}
	}
}

// flag is the value of a flag in a command line of the --name=value form.
func flag(command []string, name string) string {
	for _, arg := range command {
		if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return v
		}
	}
	return ""
}

// TestComposeFleet checks what must agree between the services.
func TestComposeFleet(t *testing.T) {
	t.Parallel()
	c := loadCompose(t)
	roles := make(map[string]int)
	for name, s := range c.Services {
		if s.Command[0] != "agent" {
			continue
		}
		engineName, ok := strings.CutPrefix(s.NetworkMode, "service:")
		if !ok {
			t.Errorf("%s is not beside an engine", name)
			continue
		}
		engine := c.Services[engineName]
		role := flag(s.Command, "role")
		roles[role]++
		for _, same := range []struct{ agent, engine string }{
			{role, flag(engine.Command, "role")},
			{flag(s.Command, "connector"), flag(engine.Command, "mode")},
			{flag(s.Command, "model"), flag(engine.Command, "model")},
			{flag(s.Command, "address"), engineName + ":" + flag(engine.Command, "port")},
			{flag(s.Command, "engine"), "http://127.0.0.1:" + flag(engine.Command, "port")},
			{flag(s.Command, "etcd-endpoints"), flag(c.Services["proxy"].Command, "etcd-endpoints")},
		} {
			if same.agent == "" || same.agent != same.engine {
				t.Errorf("%s says %q, its engine %q", name, same.agent, same.engine)
			}
		}
	}
	if roles["prefill"] != 2 || roles["decode"] != 2 {
		t.Errorf("agents by role: %v, want two each", roles)
	}
	allow, err := netip.ParsePrefix(flag(c.Services["proxy"].Command, "instance-allow"))
	if err != nil {
		t.Fatal(err)
	}
	if subnet := c.Networks["fleet"].IPAM.Config[0].Subnet; subnet != allow.String() {
		t.Errorf("the proxy allows instances in %s, but the network is %s", allow, subnet)
	}
}

// TestFlagsExist builds the programs and asks them which flags they have.
func TestFlagsExist(t *testing.T) {
	t.Parallel()
	c := loadCompose(t)
	bin := t.TempDir()
	programs := make(map[string]string) // name → its --help
	for name, s := range c.Services {
		program := s.Command[0]
		if s.Image != "pdmesh:latest" {
			continue
		}
		if _, ok := programs[program]; !ok {
			programs[program] = help(t, bin, program)
		}
		for _, arg := range s.Command[1:] {
			flagName, _, joined := strings.Cut(arg, "=")
			if !joined || !regexp.MustCompile(`(?m)^ .*`+regexp.QuoteMeta(flagName)+`\b`).MatchString(programs[program]) {
				t.Errorf("%s: %s has no flag %s", name, program, arg)
			}
		}
	}
	if len(programs) != 3 {
		t.Errorf("the programs are %v, want proxy, agent and fakevllm", programs)
	}
}

func help(t *testing.T, bin, program string) string {
	t.Helper()
	path := filepath.Join(bin, program)
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./cmd/"+program)
	build.Dir = root(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", program, err, out)
	}
	out, err := exec.CommandContext(t.Context(), path, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%s --help: %v\n%s", program, err, out)
	}
	return string(out)
}

// TestDockerfileBuildsWhatComposeRuns keeps image and fleet together.
func TestDockerfileBuildsWhatComposeRuns(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(root(t), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)
	if !strings.Contains(string(raw), fmt.Sprintf("golang:%s ", version[1])) {
		t.Errorf("the image is not built with Go %s of go.mod", version[1])
	}
	for _, s := range loadCompose(t).Services {
		if s.Image != "pdmesh:latest" {
			continue
		}
		for _, want := range []string{"./cmd/" + s.Command[0], "/out/" + s.Command[0]} {
			if !strings.Contains(string(raw), want) {
				t.Errorf("the Dockerfile has no %s", want)
			}
		}
	}
}
