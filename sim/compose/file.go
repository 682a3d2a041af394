package compose

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// File is what is read of a compose file.
type File struct {
	Services map[string]Service `yaml:"services"`
	Networks map[string]struct {
		IPAM struct {
			Config []struct {
				Subnet string `yaml:"subnet"`
			} `yaml:"config"`
		} `yaml:"ipam"`
	} `yaml:"networks"`
}

// Service is one service of a File.
type Service struct {
	Profiles    []string              `yaml:"profiles"`
	Command     []string              `yaml:"command"`
	Environment map[string]string     `yaml:"environment"`
	Ports       []string              `yaml:"ports"`   // host address:host port:port
	Volumes     []string              `yaml:"volumes"` // volume:path
	NetworkMode string                `yaml:"network_mode"`
	DependsOn   map[string]Dependency `yaml:"depends_on"`
	Healthcheck struct {
		Test []string `yaml:"test"`
	} `yaml:"healthcheck"`
	StopGrace Duration `yaml:"stop_grace_period"`
}

// Dependency says what a service waits for.
type Dependency struct {
	Condition string `yaml:"condition"` // service_started or service_healthy
}

// Duration is a time.Duration as compose files write it, such as 45s.
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*d = Duration(v)
	return nil
}

// ErrFile is wrapped by every error about what a file says.
var ErrFile = errors.New("this compose file cannot be run as processes")

// Load reads a file. Variables are taken from env; services that belong to a
// profile are left out, as without --profile.
func Load(path string, env func(string) (string, bool)) (*File, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	if err := interpolate(&doc, env); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	var f File
	if err := doc.Decode(&f); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	for name, s := range f.Services {
		if len(s.Profiles) > 0 {
			delete(f.Services, name)
		}
	}
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	return &f, nil
}

// check finds what Plan could not do anything with.
func (f *File) check() error {
	if len(f.Services) == 0 {
		return errors.New("it has no services without a profile")
	}
	for _, name := range f.Names() {
		s := f.Services[name]
		if len(s.Command) == 0 {
			return fmt.Errorf("service %s has no command", name)
		}
		for other, d := range s.DependsOn {
			if _, ok := f.Services[other]; !ok {
				return fmt.Errorf("service %s depends on %s, which there is not", name, other)
			}
			if d.Condition != "service_started" && d.Condition != "service_healthy" {
				return fmt.Errorf("service %s: condition %q", name, d.Condition)
			}
		}
		if s.NetworkMode != "" {
			other, ok := strings.CutPrefix(s.NetworkMode, "service:")
			if _, exists := f.Services[other]; !ok || !exists {
				return fmt.Errorf("service %s: network_mode %q", name, s.NetworkMode)
			}
		}
	}
	return nil
}

// Names lists the services in alphabetical order.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.Services)) }

// variable is $$, ${NAME}, ${NAME:-default} or ${NAME-default}.
var variable = regexp.MustCompile(`\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:?-)([^}]*))?\}`)

// interpolate replaces variables in every value.
func interpolate(n *yaml.Node, env func(string) (string, bool)) error {
	if n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "$") {
		rest := variable.ReplaceAllString(n.Value, "")
		if strings.Contains(rest, "$") {
			return fmt.Errorf("line %d: %q: write ${NAME}, ${NAME:-default}, or $$ for a dollar", n.Line, n.Value)
		}
		n.Value = variable.ReplaceAllStringFunc(n.Value, func(s string) string {
			if s == "$$" {
				return "$"
			}
			m := variable.FindStringSubmatch(s)
			value, ok := env(m[1])
			if !ok || (value == "" && m[2] == ":-") {
				return m[3]
			}
			return value
		})
	}
	for _, c := range n.Content {
		if err := interpolate(c, env); err != nil {
			return err
		}
	}
	return nil
}
