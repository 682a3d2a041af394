// Package deploy_test checks the files that other programs read, where these
// programs may not be at hand: docker-compose.yml and the Dockerfile.
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

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/pdmesh/pdmesh/sim/compose"
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

const composeFile = "docker-compose.yml"

// loadCompose reads the file as Docker does: schema, interpolation, merges,
// normalization. profiles "*" are all of them.
func loadCompose(t *testing.T, raw []byte, env types.Mapping, profiles ...string) (*types.Project, error) {
	t.Helper()
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: root(t), Environment: env,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(root(t), composeFile), Content: raw}},
	}, func(o *loader.Options) { o.Profiles = profiles })
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// whole is the file with all its profiles.
func whole(t *testing.T) *types.Project {
	t.Helper()
	p, err := loadCompose(t, read(t, composeFile), types.Mapping{}, "*")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The loader that Docker uses checks the file against the schema of the compose
// specification; this shows that it does.
func TestComposeSchema(t *testing.T) {
	t.Parallel()
	raw := string(read(t, composeFile))
	for _, profile := range []string{"", "vllm", "agents", "monitoring"} {
		if _, err := loadCompose(t, []byte(raw), types.Mapping{}, profile); err != nil {
			t.Errorf("profile %q: %v", profile, err)
		}
	}
	for name, change := range map[string][2]string{
		"misspelt key":    {"healthcheck:", "healthchek:"},
		"wrong type":      {"retries: 15", "retries: often"},
		"unknown service": {"      decode-1: {condition", "      decode-9: {condition"},
		"bad condition":   {"service_started, restart", "service_begun, restart"},
		"unknown volume":  {`"proxy-1:/var/lib/pdmesh"`, `"proxy-9:/var/lib/pdmesh"`},
	} {
		broken := strings.Replace(raw, change[0], change[1], 1)
		if broken == raw {
			t.Fatalf("%s: %q is not in the file", name, change[0])
		}
		if _, err := loadCompose(t, []byte(broken), types.Mapping{}, "*"); err == nil {
			t.Errorf("%s: no error", name)
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

func program(s types.ServiceConfig) string {
	if len(s.Command) == 0 {
		return ""
	}
	return s.Command[0]
}

// TestComposeServices checks what holds for every service.
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
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %d to the whole network", name, port.Target)
			}
		}
		if s.Restart != "unless-stopped" {
			t.Errorf("%s: restart %q", name, s.Restart)
		}
		want, ok := checks[program(s)]
		if ok && (s.HealthCheck == nil || !slices.Equal(s.HealthCheck.Test, want)) {
			t.Errorf("%s: health check %+v, want %q", name, s.HealthCheck, want)
		}
		if s.Image == image {
			if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") || !slices.Contains(s.Tmpfs, "/tmp") {
				t.Errorf("%s is not confined", name)
			}
		}
		if program(s) == "agent" && (s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) <= 2*time.Minute) {
			t.Errorf("%s is killed before its drain of two minutes is over: %v", name, s.StopGracePeriod)
		}
	}
}

// image is the one of the Dockerfile.
const image = "pdmesh:latest"

// TestComposeFleet checks what must agree between the services that run without
// a profile.
func TestComposeFleet(t *testing.T) {
	t.Parallel()
	p, err := loadCompose(t, read(t, composeFile), types.Mapping{})
	if err != nil {
		t.Fatal(err)
	}
	const endpoints = "etcd-1:2379,etcd-2:2379,etcd-3:2379"
	kinds := map[string]int{}
	for name, s := range p.Services {
		switch program(s) {
		case "agent":
			kinds["agent of "+flag(s.Command, "role")]++
			checkAgent(t, p, name, endpoints)
		case "proxy":
			kinds["proxy"]++
			if got := flag(s.Command, "etcd-endpoints"); got != endpoints || variable(s, "PD_ETCD_ENDPOINTS") != endpoints {
				t.Errorf("%s is at %s", name, got)
			}
			if len(s.Volumes) != 1 || s.Volumes[0].Target != flag(s.Command, "state-dir") {
				t.Errorf("%s keeps its state in %s, and its volume is %v", name, flag(s.Command, "state-dir"), s.Volumes)
			}
			allow, subnet := flag(s.Command, "instance-allow"), p.Networks["fleet"].Ipam.Config[0].Subnet
			if allow != subnet {
				t.Errorf("%s allows instances in %s, but the network is %s", name, allow, subnet)
			}
			if len(s.Ports) != 1 || fmt.Sprint(s.Ports[0].Target) != variable(s, "PD_PORT") {
				t.Errorf("%s publishes %v and listens at %s", name, s.Ports, variable(s, "PD_PORT"))
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
			if len(s.Volumes) != 1 || s.Volumes[0].Target != flag(s.Command, "data-dir") {
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

func variable(s types.ServiceConfig, name string) string {
	if v := s.Environment[name]; v != nil {
		return *v
	}
	return ""
}

// checkAgent compares an agent with the engine that it is next to.
func checkAgent(t *testing.T, p *types.Project, name, endpoints string) {
	t.Helper()
	s := p.Services[name]
	engineName, ok := strings.CutPrefix(s.NetworkMode, "service:")
	if !ok {
		t.Errorf("%s is not beside an engine", name)
		return
	}
	engine := p.Services[engineName]
	for _, same := range []struct{ agent, engine string }{
		{flag(s.Command, "role"), flag(engine.Command, "role")},
		{flag(s.Command, "connector"), flag(engine.Command, "mode")},
		{flag(s.Command, "model"), flag(engine.Command, "model")},
		{flag(s.Command, "address"), engineName + ":" + flag(engine.Command, "port")},
		{flag(s.Command, "engine"), "http://127.0.0.1:" + flag(engine.Command, "port")},
		{variable(s, "PD_ETCD_ENDPOINTS"), endpoints},
	} {
		if same.agent == "" || same.agent != same.engine {
			t.Errorf("%s says %q, its engine %q", name, same.agent, same.engine)
		}
	}
}

// scripts/fleet reads the file with a reader of its own: it must read what
// Docker reads.
func TestComposeIsReadTheSame(t *testing.T) {
	t.Parallel()
	env := types.Mapping{"ADMIN_API_KEY": "of-the-test", "INSTANCE_ALLOW": ""}
	theirs, err := loadCompose(t, read(t, composeFile), env)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := compose.Load(filepath.Join(root(t), composeFile), func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ours.Names(), slices.Sorted(maps.Keys(theirs.Services)); !slices.Equal(got, want) {
		t.Fatalf("we read %v, Docker reads %v", got, want)
	}
	for name, w := range theirs.Services {
		g := ours.Services[name]
		environment := map[string]string{}
		for k, v := range w.Environment {
			environment[k] = *v
		}
		depends := map[string]compose.Dependency{}
		for other, d := range w.DependsOn {
			if other != engineOf(w) || len(g.DependsOn) > 0 { // Docker adds the one of network_mode
				depends[other] = compose.Dependency{Condition: d.Condition}
			}
		}
		var check []string
		if w.HealthCheck != nil {
			check = w.HealthCheck.Test
		}
		var grace time.Duration
		if w.StopGracePeriod != nil {
			grace = time.Duration(*w.StopGracePeriod)
		}
		for what, same := range map[string]bool{
			"command":           slices.Equal(g.Command, w.Command),
			"environment":       maps.Equal(g.Environment, environment),
			"depends_on":        maps.Equal(g.DependsOn, depends),
			"healthcheck":       slices.Equal(g.Healthcheck.Test, check),
			"stop_grace_period": time.Duration(g.StopGrace) == grace,
			"network_mode":      g.NetworkMode == w.NetworkMode,
			"ports":             len(g.Ports) == len(w.Ports),
			"volumes":           len(g.Volumes) == len(w.Volumes),
		} {
			if !same {
				t.Errorf("%s of %s: we read %+v, Docker reads %+v", what, name, g, w)
			}
		}
	}
}

func engineOf(s types.ServiceConfig) string {
	name, _ := strings.CutPrefix(s.NetworkMode, "service:")
	return name
}

// TestFlagsExist builds the programs and asks them which flags they have.
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

// TestDockerfileBuildsWhatComposeRuns keeps image and fleet together.
func TestDockerfileBuildsWhatComposeRuns(t *testing.T) {
	t.Parallel()
	raw := string(read(t, "Dockerfile"))
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(read(t, "go.mod"))
	for _, want := range []string{
		fmt.Sprintf("golang:%s ", version[1]),
		// Cross-compiled on the machine that builds, static, and not as root.
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
