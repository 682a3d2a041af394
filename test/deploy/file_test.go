package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

const composeFile = "docker-compose.yml"

// The types below declare every key that docker-compose.yml uses, with its type. The compose specification has
// more; add keys here when the file uses them.

type composeProject struct {
	Name     string
	Services map[string]composeService
	Volumes  map[string]struct{}
	Networks map[string]struct {
		IPAM struct {
			Config []struct{ Subnet string }
		}
	}
	Extensions map[string]any `yaml:",inline"` // x-...
}

type composeService struct {
	Image, Build, Restart string
	Profiles              []string
	Entrypoint, Command   []string
	Environment           map[string]string
	Ports, Volumes        []string
	Networks              composeNetworks
	NetworkMode           string   `yaml:"network_mode"`
	ExtraHosts            []string `yaml:"extra_hosts"`
	ReadOnly              bool     `yaml:"read_only"`
	Tmpfs                 []string
	CapDrop               []string `yaml:"cap_drop"`
	SecurityOpt           []string `yaml:"security_opt"`
	ShmSize               string   `yaml:"shm_size"`
	Healthcheck           struct {
		Test              []string
		Interval, Timeout time.Duration
		StartPeriod       time.Duration `yaml:"start_period"`
		Retries           int
	}
	StopGracePeriod time.Duration `yaml:"stop_grace_period"`
	DependsOn       map[string]struct {
		Condition string
		Restart   bool
	} `yaml:"depends_on"`
	Deploy struct {
		Resources struct {
			Reservations struct {
				Devices []struct {
					Driver       string
					DeviceIDs    []string `yaml:"device_ids"`
					Capabilities []string
				}
			}
		}
	}
}

// composeNetworks are the names of the networks of a service, which the file writes as a list or as the keys
// of a map.
type composeNetworks []string

func (n *composeNetworks) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return node.Decode((*[]string)(n))
	}
	var byName map[string]map[string]string
	if err := node.Decode(&byName); err != nil {
		return err
	}
	for name, settings := range byName {
		for key := range settings {
			if key != "ipv4_address" {
				return fmt.Errorf("network %s: unknown key %s", name, key)
			}
		}
		*n = append(*n, name)
	}
	return nil
}

// variable matches ${NAME:-default}, the only form that neither fails nor warns if NAME is unset.
var variable = regexp.MustCompile(`\$\{[A-Z_]+:-([^}]*)\}`)

// loadCompose reads a compose file with every variable unset, and checks its
// types and references.
func loadCompose(raw []byte) (*composeProject, error) {
	raw = variable.ReplaceAll(raw, []byte("$1"))
	if i := bytes.IndexByte(raw, '$'); i >= 0 {
		return nil, fmt.Errorf("variable without a default: %q", raw[i:min(len(raw), i+20)])
	}
	var p composeProject
	d := yaml.NewDecoder(bytes.NewReader(raw))
	d.KnownFields(true)
	if err := d.Decode(&p); err != nil {
		return nil, err
	}
	var errs []error
	for key := range p.Extensions {
		if !strings.HasPrefix(key, "x-") {
			errs = append(errs, fmt.Errorf("unknown key %s", key))
		}
	}
	for name := range p.Services {
		if err := p.checkReferences(name); err != nil {
			errs = append(errs, fmt.Errorf("service %s: %w", name, err))
		}
	}
	return &p, errors.Join(errs...)
}

// checkReferences returns an error if a service refers to something that the file does not define.
func (p *composeProject) checkReferences(name string) error {
	s := p.Services[name]
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for other, d := range s.DependsOn {
		o, ok := p.Services[other]
		switch {
		case !ok:
			wrong("depends on %s, which does not exist", other)
		case len(o.Profiles) > 0 && (len(s.Profiles) == 0 || !subset(s.Profiles, o.Profiles)):
			wrong("depends on %s, which its profiles %v do not start", other, s.Profiles)
		}
		if !slices.Contains([]string{"service_started", "service_healthy", "service_completed_successfully"}, d.Condition) {
			wrong("unknown condition %q", d.Condition)
		}
	}
	for _, v := range s.Volumes {
		source, target, _ := strings.Cut(v, ":")
		if !strings.HasPrefix(target, "/") {
			wrong("volume %s has no target", v)
		}
		if strings.HasPrefix(source, "./") {
			if _, err := os.Stat(filepath.Join("..", "..", source)); err != nil {
				wrong("volume %s: %w", v, err)
			}
		} else if _, ok := p.Volumes[source]; !ok {
			wrong("volume %s is not declared", source)
		}
	}
	for _, n := range s.Networks {
		if _, ok := p.Networks[n]; !ok {
			wrong("network %s is not declared", n)
		}
	}
	if engine, ok := strings.CutPrefix(s.NetworkMode, "service:"); ok {
		if _, exists := p.Services[engine]; !exists {
			wrong("network_mode names %s, which does not exist", engine)
		}
	} else if s.NetworkMode != "" {
		wrong("unknown network_mode %q", s.NetworkMode)
	}
	for _, port := range s.Ports {
		if !regexp.MustCompile(`^(\d+\.\d+\.\d+\.\d+:)?\d+:\d+$`).MatchString(port) {
			wrong("port %q is not [ADDRESS:]PORT:PORT", port)
		}
	}
	return errors.Join(errs...)
}

func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(b, s) })
}

// whole is the file with the services of all profiles.
func whole(t *testing.T) *composeProject {
	t.Helper()
	p, err := loadCompose(read(t, composeFile))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Misspelt keys, wrong types, dangling references, and variables without a default are errors.
func TestComposeSchema(t *testing.T) {
	t.Parallel()
	raw := string(read(t, composeFile))
	profiles := map[string]bool{}
	for _, s := range whole(t).Services {
		for _, p := range s.Profiles {
			profiles[p] = true
		}
	}
	if len(profiles) != 3 || !profiles["vllm"] || !profiles["agents"] || !profiles["monitoring"] {
		t.Errorf("profiles %v", profiles)
	}
	for name, change := range map[string][2]string{
		"misspelt key":          {"healthcheck:", "healthchek:"},
		"wrong type":            {"retries: 15", "retries: often"},
		"wrong duration":        {"interval: 2s", "interval: 2 seconds"},
		"unknown service":       {"      decode-1: {condition", "      decode-9: {condition"},
		"other profile":         {"      decode-1: {condition", "      vllm-decode: {condition"},
		"bad condition":         {"service_started, restart", "service_begun, restart"},
		"unknown volume":        {`"proxy-1:/var/lib/pdmesh"`, `"proxy-9:/var/lib/pdmesh"`},
		"missing file":          {"./deploy/prometheus:", "./deploy/prometeus:"},
		"unknown network":       {"networks: [fleet]", "networks: [fleets]"},
		"unknown engine":        {"network_mode: service:decode-1", "network_mode: service:decode-9"},
		"unknown network key":   {"ipv4_address", "ipv4_addres"},
		"port without a target": {`"127.0.0.1:8001:8000"`, `"127.0.0.1:8001"`},
		"unset variable":        {"${HF_TOKEN:-}", "${HF_TOKEN}"},
		"old version":           {"name: pdmesh\n", "version: \"3\"\nname: pdmesh\n"},
	} {
		broken := strings.Replace(raw, change[0], change[1], 1)
		if broken == raw {
			t.Fatalf("%s: %q is not in the file", name, change[0])
		}
		if _, err := loadCompose([]byte(broken)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
