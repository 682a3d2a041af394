package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/discovery"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/logging"
	"github.com/pdmesh/pdmesh/internal/vllm"
)

// Bounds of the lease's time to live. Below the floor a short stop of etcd or
// of this machine costs the registration; above the ceiling a dead instance
// stays listed for minutes.
const (
	defaultTTL = 15 * time.Second
	minTTL     = 5 * time.Second
	maxTTL     = 10 * time.Minute
	// testMinTTL is the least that etcd grants; below minTTL by a hidden flag only.
	testMinTTL = time.Second
)

// config is the checked configuration of an agent.
type config struct {
	key           instance.Key
	engine        string
	model         string
	strictModel   bool
	connector     string
	labels        map[string]string
	hostID        string
	engineAPIKey  string
	etcdEndpoints []string
	etcdPrefix    string
	etcdUsername  string
	etcdPassword  string
	ttl           time.Duration
	probeInterval time.Duration
	probeTimeout  time.Duration
	drainTimeout  time.Duration
	kvLease       time.Duration
	socket        string // "": the default one; socketOff: none
	logLevel      string
	logFormat     string
}

func registerFlags(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.String("role", "", "what the engine does: prefill or decode")
	fs.String("address", "", "host:port by which proxies reach the engine; also its key in etcd")
	fs.String("engine", "", "URL by which this agent reaches the engine (default http://<address>)")
	fs.String("model", "", "register only if the engine serves this model; empty accepts any")
	fs.Bool("strict-model", false, "the whole name must match, not only its last path component")
	fs.String("connector", "", "KV-transfer dialect of the engine, e.g. plain or nixl; empty leaves it to the proxy")
	fs.StringArray("label", nil, "k=v, shown with the instance; may be repeated")
	fs.String("host-id", "", "tells network namespaces apart (default: found from machine id and namespace)")
	fs.String("engine-api-key", "", "key for the engine's /v1 paths; better given by environment: PD_ENGINE_API_KEY, or OPENAI_API_KEY")
	fs.StringSlice("etcd-endpoints", []string{"127.0.0.1:2379"}, "host:port of each etcd member, comma separated")
	fs.String("etcd-prefix", "/pd", "root of all keys")
	fs.String("etcd-username", "", "user of etcd")
	fs.String("etcd-password", "", "its password; better given by environment: PD_ETCD_PASSWORD")
	fs.Bool("allow-loopback", false, "register a loopback address although etcd is on other machines")
	fs.Duration("ttl", defaultTTL, "how long the registration outlives a dead agent, at least "+minTTL.String())
	fs.Duration("probe-interval", agent.DefaultProbeInterval, "time between two probes of the engine")
	fs.Duration("probe-timeout", agent.DefaultProbeTimeout, "limit of one probe; three that fail in a row make the instance down")
	fs.Duration("drain-timeout", agent.DefaultDrainTimeout, "after SIGTERM: how long to wait for the engine to be idle")
	fs.Duration("kv-lease", agent.DefaultKVLease, "after SIGTERM of a prefill instance: how long finished prefills stay for decode to pull; 0 for none")
	fs.String("socket", "", "unix socket of the local control: agent status, drain, health; \"off\" for none (default: by address, in $XDG_RUNTIME_DIR, /run or the temporary directory)")
	fs.String("log-level", "info", strings.Join(logging.Levels(), ", "))
	fs.String("log-format", "text", "text or json")
	fs.Bool("allow-short-ttl", false, "")
	_ = fs.MarkHidden("allow-short-ttl") // exists: registered in the line above
}

// load reads flags over the environment (PD_<NAME>) over defaults. Its error
// lists everything that is wrong, a line each.
func load(fs *pflag.FlagSet, lookupEnv func(string) (string, bool)) (config, error) {
	v := viper.New()
	env := make(map[string]any)
	fs.VisitAll(func(f *pflag.Flag) {
		name := "PD_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value, ok := lookupEnv(name); ok && value != "" {
			env[f.Name] = value
		}
	})
	if _, ok := env["engine-api-key"]; !ok {
		if value, ok := lookupEnv("OPENAI_API_KEY"); ok && value != "" {
			env["engine-api-key"] = value
		}
	}
	if err := errors.Join(v.MergeConfigMap(env), v.BindPFlags(fs)); err != nil {
		return config{}, fmt.Errorf("read settings: %w", err)
	}
	r := reader{v: v, fs: fs}
	c := config{
		engine: v.GetString("engine"), model: v.GetString("model"), strictModel: r.bool("strict-model"),
		connector: v.GetString("connector"), hostID: v.GetString("host-id"), engineAPIKey: v.GetString("engine-api-key"),
		etcdPrefix: v.GetString("etcd-prefix"), etcdUsername: v.GetString("etcd-username"), etcdPassword: v.GetString("etcd-password"),
		ttl: r.duration("ttl"), probeInterval: r.duration("probe-interval"), probeTimeout: r.duration("probe-timeout"),
		drainTimeout: r.duration("drain-timeout"), kvLease: r.duration("kv-lease"),
		socket: v.GetString("socket"), logLevel: v.GetString("log-level"), logFormat: v.GetString("log-format"),
	}
	c.key = r.key()
	c.etcdEndpoints = r.endpoints()
	c.labels = r.labels()
	if _, err := discovery.NewLayout(c.etcdPrefix); err != nil {
		r.fail("etcd-prefix", err)
	}
	r.checkEngine(&c)
	r.checkTimes(&c)
	if c.key.Address != "" && instance.IsLoopback(c.key.Address) && !r.bool("allow-loopback") && !allLoopback(c.etcdEndpoints) {
		r.fail("address", errors.New(c.key.Address+" is a loopback address, but etcd is on another machine, whose proxies would look for the engine on their own: give the address others reach it by, or --allow-loopback"))
	}
	if c.etcdUsername == "" && c.etcdPassword != "" {
		r.fail("etcd-password", errors.New("given without --etcd-username"))
	}
	if strings.ContainsFunc(c.engineAPIKey, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		r.fail("engine-api-key", errors.New("holds a space or a control character"))
	}
	if err := errors.Join(r.errs...); err != nil {
		return config{}, err
	}
	if c.kvLease == 0 {
		c.kvLease = -1 // to the agent zero means its default
	}
	if c.hostID == "" {
		id, err := agent.HostID(os.DirFS("/"), os.Readlink)
		if err != nil {
			return config{}, err
		}
		c.hostID = id
	}
	return c, nil
}

// reader takes values out of viper and collects what is wrong with them.
type reader struct {
	v    *viper.Viper
	fs   *pflag.FlagSet
	errs []error
}

// fail notes an error and, when the value is not from the command line, where it is from.
func (r *reader) fail(name string, err error) {
	where := ""
	if f := r.fs.Lookup(name); f != nil && !f.Changed && r.v.InConfig(name) {
		where = " (from the environment)"
	}
	r.errs = append(r.errs, fmt.Errorf("--%s%s: %w", name, where, err))
}

func (r *reader) bool(name string) bool {
	b, err := strconv.ParseBool(r.v.GetString(name))
	if err != nil {
		r.fail(name, fmt.Errorf("%q is neither true nor false", instance.Printable(r.v.GetString(name), 40)))
	}
	return b
}

func (r *reader) duration(name string) time.Duration {
	d, err := time.ParseDuration(r.v.GetString(name))
	if err != nil {
		r.fail(name, fmt.Errorf("%q is no duration: write 500ms, 15s, 2m", instance.Printable(r.v.GetString(name), 40)))
	}
	return d
}

// list is a comma separated value, or the parts of a repeated flag.
func (r *reader) list(name string) []string {
	var parts []string
	switch raw := r.v.Get(name).(type) {
	case []string:
		parts = raw
	case string:
		parts = strings.Split(raw, ",")
	}
	var out []string
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

func (r *reader) key() instance.Key {
	var key instance.Key
	if s := r.v.GetString("role"); s == "" {
		r.fail("role", errors.New("is missing: give --role prefill or --role decode (or PD_ROLE)"))
	} else if role, err := instance.ParseRole(s); err != nil {
		r.fail("role", err)
	} else {
		key.Role = role
	}
	if s := r.v.GetString("address"); s == "" {
		r.fail("address", errors.New("is missing: give the host:port by which proxies reach the engine"))
	} else if address, err := instance.ParseAddress(s); err != nil {
		r.fail("address", err)
	} else {
		key.Address = address
	}
	return key
}

func (r *reader) endpoints() []string {
	var out []string
	for _, s := range r.list("etcd-endpoints") {
		if strings.HasPrefix(s, "https://") {
			r.fail("etcd-endpoints", fmt.Errorf("%q: TLS to etcd is not supported; give host:port", instance.Printable(s, 80)))
			continue
		}
		address, err := instance.ParseAddress(strings.TrimSuffix(strings.TrimPrefix(s, "http://"), "/"))
		if err != nil {
			r.fail("etcd-endpoints", err)
			continue
		}
		if !slices.Contains(out, address) {
			out = append(out, address)
		}
	}
	if len(out) == 0 && len(r.errs) == 0 {
		r.fail("etcd-endpoints", errors.New("is empty: an agent needs etcd, e.g. 127.0.0.1:2379"))
	}
	return out
}

// Bounds of labels: they travel in every record.
const (
	maxLabels    = 32
	maxLabelSize = 128
)

func (r *reader) labels() map[string]string {
	out := make(map[string]string)
	for _, s := range r.list("label") {
		name, value, ok := strings.Cut(s, "=")
		switch {
		case !ok || name == "":
			r.fail("label", fmt.Errorf("%q: write name=value", instance.Printable(s, 80)))
		case len(name) > maxLabelSize || len(value) > maxLabelSize:
			r.fail("label", fmt.Errorf("%q: name and value take at most %d bytes each", instance.Printable(s, 80), maxLabelSize))
		case instance.Printable(s, 0) != s:
			r.fail("label", fmt.Errorf("%q: control characters", instance.Printable(s, 80)))
		default:
			out[name] = value
		}
	}
	if len(out) > maxLabels {
		r.fail("label", fmt.Errorf("at most %d labels", maxLabels))
	}
	if len(out) == 0 {
		return nil
	}
	return maps.Clone(out)
}

func (r *reader) checkEngine(c *config) {
	if c.engine == "" {
		c.engine = "http://" + c.key.Address
		return
	}
	if err := vllm.CheckBase(c.engine); err != nil {
		r.fail("engine", err)
	}
}

func (r *reader) checkTimes(c *config) {
	if len(r.errs) > 0 {
		return // a duration that could not be read is zero here
	}
	least := minTTL
	if r.bool("allow-short-ttl") {
		least = testMinTTL
	}
	for _, t := range []struct {
		name       string
		value      time.Duration
		least, top time.Duration
	}{
		{"ttl", c.ttl, least, maxTTL},
		{"probe-interval", c.probeInterval, 50 * time.Millisecond, time.Minute},
		{"probe-timeout", c.probeTimeout, 50 * time.Millisecond, time.Minute},
		{"drain-timeout", c.drainTimeout, time.Millisecond, 24 * time.Hour},
		{"kv-lease", c.kvLease, 0, time.Hour},
	} {
		if t.value < t.least || t.value > t.top {
			r.fail(t.name, fmt.Errorf("%s: from %s to %s", t.value, t.least, t.top))
		}
	}
	if c.ttl%time.Second != 0 {
		r.fail("ttl", fmt.Errorf("%s: etcd counts whole seconds", c.ttl))
	}
}

func allLoopback(endpoints []string) bool {
	for _, e := range endpoints {
		if !instance.IsLoopback(e) {
			return false
		}
	}
	return true
}
