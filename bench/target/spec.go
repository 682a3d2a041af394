package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/sim/fleet"
)

// Kind is the program that a target runs.
type Kind int

// The kinds of targets.
const (
	Mesh       Kind = iota // our proxy
	Nginx                  // a plain reverse proxy: one hop, to decode
	VLLMRouter             // vLLM's router, with prefill and decode
	SMG                    // smg, with prefill and decode
)

// Spec describes a target.
type Spec struct {
	Name    string
	Kind    Kind
	Program string   // a file, or a name in the path; "" is the proxy of Options.BinDir
	Policy  string   // of prefill instances, for VLLMRouter and SMG
	Flags   []string // more flags for our proxy
}

// Known returns the targets that are measured by default.
func Known() []Spec {
	return []Spec{
		{Name: "pdmesh", Kind: Mesh},
		{Name: "vllm-router", Kind: VLLMRouter, Program: "vllm-router", Policy: policy.Default},
		{Name: "smg", Kind: SMG, Program: "smg", Policy: policy.Default},
		{Name: "nginx", Kind: Nginx, Program: "nginx"},
	}
}

// Policies returns our proxy with each policy, named after the policy. With a cache-aware policy,
// decode has the default policy.
func Policies() []Spec {
	var out []Spec
	for _, name := range policy.Names() {
		decode := name
		if name == policy.DefaultPrefill || name == policy.KVAware {
			decode = policy.Default
		}
		out = append(out, Spec{Name: name, Kind: Mesh, Flags: []string{"--prefill-policy", name, "--decode-policy", decode}})
	}
	return out
}

// Names returns the names of specs.
func Names(specs []Spec) []string {
	var names []string
	for _, s := range specs {
		names = append(names, s.Name)
	}
	return names
}

// ErrUnknown is returned for a name that is not one of Known or Policies.
var ErrUnknown = errors.New("unknown target")

// Parse returns the target with a name.
func Parse(name string) (Spec, error) {
	all := slices.Concat(Known(), Policies())
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return Spec{}, fmt.Errorf("%w %q: must be one of %s", ErrUnknown, name, strings.Join(Names(all), ", "))
}

// ErrAbsent is returned if the program of a target is not installed.
var ErrAbsent = errors.New("not installed")

// Locate returns the absolute path of a target's program.
func (l *Lab) Locate(s Spec) (string, error) {
	program := cmp.Or(s.Program, filepath.Join(l.o.BinDir, "proxy"))
	file, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("%s: %w", program, ErrAbsent)
	}
	if file, err = filepath.Abs(file); err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	return file, nil
}

// Site has the engines of a target, and for our proxy their etcd.
type Site struct {
	Prefill, Decode []string
	Connector       string
	Etcd, Prefix    string
}

// Start starts a target, and blocks until it serves.
func (l *Lab) Start(ctx context.Context, s Spec, site Site) (*Running, error) {
	program, err := l.Locate(s)
	if err != nil {
		return nil, err
	}
	ports, err := fleet.FreePorts(2) // the second one is for the metrics of peers
	if err != nil {
		return nil, err
	}
	addr := fmt.Sprintf("127.0.0.1:%d", ports[0])
	args, ready := peerArgs(s, site, ports), "/health"
	switch s.Kind {
	case Mesh:
		args, ready = l.meshArgs(s, site, ports[0]), "/readyz"
	case Nginx:
		conf, err := l.nginxConfig(addr, site.Decode)
		if err != nil {
			return nil, err
		}
		args = []string{"-p", l.dir, "-e", "stderr", "-c", conf}
	case VLLMRouter, SMG:
	}
	p, err := l.launch(ctx, s.Name, "http://"+addr+ready, program, args)
	if err != nil {
		return nil, err
	}
	return &Running{Address: addr, process: p}, nil
}

// meshArgs returns the arguments of our proxy.
func (l *Lab) meshArgs(s Spec, site Site, port int) []string {
	return append([]string{
		"--host", "127.0.0.1", "--port", fmt.Sprint(port), "--connector", site.Connector,
		"--state-dir", filepath.Join(l.dir, fmt.Sprintf("state-%d", port)),
		"--etcd-endpoints", site.Etcd, "--etcd-prefix", site.Prefix,
	}, s.Flags...)
}

// peerArgs returns the arguments of vllm-router or smg, with a limit of requests that no
// workload reaches.
func peerArgs(s Spec, site Site, ports []int) []string {
	args, level := []string{"--vllm-pd-disaggregation"}, "warning"
	if s.Kind == SMG {
		args, level = []string{"launch", "--pd-disaggregation"}, "warn"
	}
	args = append(args, "--host", "127.0.0.1", "--port", fmt.Sprint(ports[0]),
		"--prometheus-host", "127.0.0.1", "--prometheus-port", fmt.Sprint(ports[1]),
		"--prefill-policy", s.Policy, "--decode-policy", policy.Default, "--max-concurrent-requests", "100000", "--log-level", level)
	for _, addr := range site.Prefill {
		args = append(args, "--prefill", "http://"+addr)
	}
	for _, addr := range site.Decode {
		args = append(args, "--decode", "http://"+addr)
	}
	return args
}

// nginxConfig writes the configuration of a plain reverse proxy: one process, connections
// to engines that stay open, no buffering, an access log, and no limit that a workload
// reaches.
func (l *Lab) nginxConfig(addr string, decode []string) (string, error) {
	var servers strings.Builder
	for _, d := range decode {
		servers.WriteString("    server " + d + ";\n")
	}
	conf := fmt.Sprintf(`daemon off;
master_process off;
worker_processes 1;
pid %[1]s/nginx.pid;
error_log %[1]s/nginx-error.log;
events { worker_connections %[2]d; }
http {
  access_log %[1]s/nginx-access.log;
  client_body_temp_path %[1]s/nginx-body;
  proxy_temp_path %[1]s/nginx-proxy;
  fastcgi_temp_path %[1]s/nginx-fastcgi;
  uwsgi_temp_path %[1]s/nginx-uwsgi;
  scgi_temp_path %[1]s/nginx-scgi;
  keepalive_requests 1000000000;
  client_max_body_size 64m;
  client_body_buffer_size 64k;
  tcp_nodelay on;
  upstream engines {
%[3]s    keepalive 2048;
    keepalive_requests 1000000000;
    keepalive_timeout 4s;
  }
  server {
    listen %[4]s backlog=4096;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 1h;
    }
  }
}
`, l.dir, cmp.Or(l.o.Files, 1024), servers.String(), addr)
	path := filepath.Join(l.dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
		return "", fmt.Errorf("nginx: %w", err)
	}
	return path, nil
}
