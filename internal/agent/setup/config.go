// Package setup reads the configuration of an agent: its settings, and facts from the command
// line and environment of the engine for those that are not set. It starts nothing.
package setup

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/engine/vllm"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Bounds of the lease's TTL. With a shorter one the registration is lost when etcd or this
// machine pauses; with a longer one a dead instance stays listed for minutes.
const (
	defaultTTL = 15 * time.Second
	minTTL     = 5 * time.Second
	maxTTL     = 10 * time.Minute
	// testMinTTL is the minimum of etcd; only a hidden flag allows less than minTTL.
	testMinTTL = time.Second
)

// Config is the checked configuration of an agent.
type Config struct {
	// Options has the options of the agent that are settings, except ShutdownDelay.
	agent.Options
	Engine        string
	connector     string
	labels        map[string]string
	HostID        string
	EngineAPIKey  string
	EtcdEndpoints []string
	EtcdPrefix    string
	EtcdUsername  string
	EtcdPassword  string
	TLS           Secured
	TTL           time.Duration
	ShutdownDelay time.Duration
	Socket        string // "" for the default path, control.SocketOff for none
	LogLevel      string
	LogFormat     string

	ZMQRegister   string // endpoint; "" for an agent with an engine
	AllowLoopback bool   // for engines that register themselves

	Facts instance.Record // from the engine's command and environment: kv_role, sizes, ids
	Notes []string        // warnings at the start

	Side      sideChannel // of a NIXL engine that this agent starts
	Events    kvEvents    // of an engine that this agent starts
	Notices   NoticeConfig
	Bootstrap string // host:port of a Mooncake prefill engine's bootstrap server; "" for none

	BootstrapServer bootstrapServer // of an engine that this agent starts

	Command         []string // of the engine; nil if the agent does not start it
	Restart         bool     // after a failure
	RestartDelay    time.Duration
	RestartDelayMax time.Duration
	StartTimeout    time.Duration // 0: none
	StopTimeout     time.Duration
	DieWith         bool

	PrintConfig bool
	values      *settings.Values // values and their sources
}

// The values of --restart.
const (
	restartNo        = "no"
	restartOnFailure = "on-failure"
)

// Load returns the configuration from, by precedence, flags, environment (PD_<NAME>), file,
// facts about the engine, and defaults. command follows "--". The error has a line for each
// invalid setting.
func Load(fs *pflag.FlagSet, lookupEnv func(string) (string, bool), command []string) (Config, error) {
	c := Config{Command: command}
	r := reader{}
	v, err := r.settings(&c).Load(fs, lookupEnv, "")
	if err != nil {
		return Config{}, err
	}
	r.input, c.values = &input{Values: v}, v
	if err := v.Fill(); err != nil {
		r.wrong(err)
	}
	f := find(r.input, command, lookupEnv)
	c.Restart = r.restarts()
	c.Model, c.EngineAPIKey = r.text("model", f.models()...), r.text("engine-api-key", f.keys()...)
	r.endpoints(&c, f)
	r.readTLS(&c)
	if c.ZMQRegister != "" {
		r.checkBridge(&c)
	} else {
		r.instance(&c, f)
		if lease := time.Duration(f.transfer.LeaseSeconds()) * time.Second; lease > 0 && !r.Given("kv-lease") {
			c.KVLease = min(lease, time.Hour)
			r.Set("kv-lease", c.KVLease.String(), f.from)
		}
	}
	c.Notes = f.notes
	if _, err := schema.NewLayout(c.EtcdPrefix); err != nil {
		r.fail("etcd-prefix", err)
	}
	r.checkTimes(&c)
	if (c.EtcdUsername == "") != (c.EtcdPassword == "") {
		r.fail("etcd-username", errors.New("set --etcd-username and --etcd-password (or PD_ETCD_PASSWORD) together"))
	}
	if strings.ContainsFunc(c.EngineAPIKey, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		r.fail("engine-api-key", errors.New("holds a space or a control character"))
	}
	if err := errors.Join(r.errs...); err != nil {
		return Config{}, err
	}
	c.KVLease = cmp.Or(c.KVLease, -1) // the agent replaces 0 by its default
	if c.HostID == "" {
		id, err := agent.HostID(os.DirFS("/"), os.Readlink)
		if err != nil {
			return Config{}, err
		}
		c.HostID = id
	}
	return c, nil
}

// instance reads the settings of the engine.
func (r *reader) instance(c *Config, f *facts) {
	c.connector = r.text("connector", f.connectors()...)
	dialect, err := connector.Canonical(c.connector)
	if err != nil { // every proxy would reject the record
		r.fail("connector", err)
	}
	c.Key = r.key(f, instance.AllLoopback(c.EtcdEndpoints))
	c.labels = r.allLabels(f.labels())
	c.Facts.KVRole = f.kvRole(c.Key.Role, c.connector)
	f.record(&c.Facts, dialect)
	c.Side = f.findSideChannel(c.Key.Address)
	r.checkCommand(c)
	r.checkEngine(c, f)
	c.Bootstrap = r.findBootstrap(f, c, dialect)
	r.findP2P(f, c, dialect)
	f.findEvents(c)
	c.Notices = r.findLMCache(f, c, dialect)
	if c.Key.Address != "" && instance.IsLoopback(c.Key.Address) && !r.allowLoopback && !instance.AllLoopback(c.EtcdEndpoints) {
		r.fail("address", errors.New(c.Key.Address+" is a loopback address, but etcd is on another machine, where proxies could not reach it: set the address by which they do, or --allow-loopback"))
	}
}

// excludes refuses flags that do not apply. It accepts these settings in the environment, where
// they may be for other agents of the same image.
func (r *reader) excludes(why error, names ...string) {
	for _, name := range names {
		if r.FromFlag(name) {
			r.fail(name, why)
		}
	}
}

// checkBridge refuses settings of one engine with --zmq-register.
func (r *reader) checkBridge(c *Config) {
	c.AllowLoopback = r.allowLoopback || instance.AllLoopback(c.EtcdEndpoints)
	if _, err := zmq.ParseEndpoint(c.ZMQRegister); err != nil {
		r.fail("zmq-register", err)
	}
	if c.Command != nil {
		r.fail("zmq-register", errors.New("is for engines that register themselves, not for a command after --"))
	}
	r.checkCommand(c)
	r.excludes(errors.New("is for engines with https; those that register themselves are called by http"),
		"engine-ca", "engine-cert", "engine-key", "engine-server-name")
	r.excludes(errors.New("is for one engine; with --zmq-register engines publish it themselves"),
		"role", "address", "engine", "connector", "bootstrap-port", "kv-transfer-config", "label")
}

// input has the values of settings and the errors about them.
type input struct {
	*settings.Values
	errs []error
}

// reader builds a Config from input.
type reader struct {
	*input

	// Settings that Config has in another form.
	labels        []string
	restart       string
	passwordFile  string
	allowLoopback bool
	shortTTL      bool
	file          string
}

// text returns a setting, or else the first fact that is not empty.
func (in *input) text(name string, found ...fact) string {
	if !in.Given(name) {
		for _, f := range found {
			if f.value != "" {
				in.Set(name, f.value, f.from)
				break
			}
		}
	}
	return in.Text(name)
}

// port returns the port of a setting, as text does; 0 if it is not valid.
func (in *input) port(name string, found ...fact) int {
	text := in.text(name, found...)
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		in.fail(name, fmt.Errorf("invalid port %q", instance.Printable(text, 40)))
		return 0
	}
	return port
}

func (r *reader) restarts() bool {
	switch r.restart {
	case restartNo, "":
		return false
	case restartOnFailure:
		return true
	default:
		r.fail("restart", fmt.Errorf("%q: use %s or %s", instance.Printable(r.restart, 40), restartNo, restartOnFailure))
		return false
	}
}

// wrong adds an error.
func (in *input) wrong(err error) { in.errs = append(in.errs, err) }

// fail adds an error about a setting.
func (in *input) fail(name string, err error) {
	in.wrong(in.Sources.Complain(name, err))
}

func (r *reader) key(f *facts, etcdIsLocal bool) instance.Key {
	var key instance.Key
	if s := r.text("role", f.roles()...); s == "" {
		r.fail("role", f.noRole())
	} else if role, err := instance.ParseRoles(s); err != nil {
		r.fail("role", err)
	} else {
		key.Role = role
	}
	s := r.Text("address")
	if s == "" {
		found, err := f.findAddress(key.Role, etcdIsLocal)
		if err != nil {
			r.fail("address", err)
			return key
		}
		s = found.value
		r.Set("address", found.value, found.from)
	}
	if address, err := instance.ParseAddress(s); err != nil {
		r.fail("address", err)
	} else {
		key.Address = address
	}
	return key
}

// endpoints reads the etcd endpoints from the settings or mooncake.json.
func (r *reader) endpoints(c *Config, f *facts) {
	if found := f.endpoints(); found != nil {
		c.EtcdEndpoints = found
		return
	}
	given := c.EtcdEndpoints
	var err error
	c.EtcdEndpoints, c.TLS.Etcd.On, err = access.ParseEndpoints(given)
	if err != nil {
		r.fail("etcd-endpoints", err)
	} else if len(c.EtcdEndpoints) == 0 && len(r.errs) == 0 {
		r.fail("etcd-endpoints", errors.New("is empty: an agent needs etcd, e.g. 127.0.0.1:2379"))
	}
}

// Bounds of labels, which are part of every record.
const (
	maxLabels    = 32
	maxLabelSize = 128
)

// allLabels adds the labels of --label to those of the facts.
func (r *reader) allLabels(out map[string]string) map[string]string {
	for _, s := range r.labels {
		name, value, ok := strings.Cut(s, "=")
		switch {
		case !ok || name == "":
			r.fail("label", fmt.Errorf("%q: must be name=value", instance.Printable(s, 80)))
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
	return out
}

func (r *reader) checkEngine(c *Config, f *facts) {
	if c.Engine = r.text("engine", f.findEngine()); c.Engine == "" {
		c.Engine = "http://" + c.Key.Address
		return
	}
	if err := vllm.CheckBase(c.Engine); err != nil {
		r.fail("engine", err)
	}
}

// checkCommand refuses settings that do not apply without a command.
func (r *reader) checkCommand(c *Config) {
	if c.Command == nil {
		r.excludes(errors.New("is for an engine that this agent starts, as in pdmesh-agent ... -- vllm serve MODEL"),
			"restart", "restart-delay", "restart-delay-max", "start-timeout", "stop-timeout", "engine-dies-with-agent")
	}
}

func (r *reader) checkTimes(c *Config) {
	if len(r.errs) > 0 {
		return // an invalid duration is zero
	}
	least := minTTL
	if r.shortTTL {
		least = testMinTTL
	}
	for _, t := range []struct {
		name       string
		value      time.Duration
		least, top time.Duration
	}{
		{"ttl", c.TTL, least, maxTTL},
		{"probe-interval", c.ProbeInterval, 50 * time.Millisecond, time.Minute},
		{"probe-timeout", c.ProbeTimeout, 50 * time.Millisecond, time.Minute},
		{"slow-after", c.SlowAfter, time.Millisecond, time.Hour},
		{"drain-timeout", c.DrainTimeout, time.Millisecond, 24 * time.Hour},
		{"shutdown-delay", c.ShutdownDelay, 0, time.Hour},
		{"kv-lease", c.KVLease, 0, time.Hour},
		{"restart-delay", c.RestartDelay, time.Millisecond, time.Hour},
		{"restart-delay-max", c.RestartDelayMax, c.RestartDelay, 24 * time.Hour},
		{"start-timeout", c.StartTimeout, 0, 24 * time.Hour},
		{"stop-timeout", c.StopTimeout, time.Millisecond, time.Hour},
	} {
		if t.value < t.least || t.value > t.top {
			r.fail(t.name, fmt.Errorf("%s: must be between %s and %s", t.value, t.least, t.top))
		}
	}
	if c.TTL%time.Second != 0 {
		r.fail("ttl", fmt.Errorf("%s: etcd counts whole seconds", c.TTL))
	}
}

// Secured has the TLS files for the engine and etcd.
type Secured struct {
	Engine     certs.Files
	ServerName string // in the engine's certificate; "" for the host of its address
	Etcd       access.TLS
}

// readTLS checks the settings about TLS and reads the password of etcd in a file.
func (r *reader) readTLS(c *Config) {
	for prefix, f := range map[string]certs.Files{"engine": c.TLS.Engine, "etcd": c.TLS.Etcd.Files} {
		if (f.Cert == "") != (f.Key == "") {
			r.fail(prefix+"-cert", fmt.Errorf("set --%s-cert and --%s-key together", prefix, prefix))
		}
	}
	password, err := access.Password(c.EtcdPassword, r.passwordFile)
	if err != nil {
		r.fail("etcd-password-file", err)
	}
	c.EtcdPassword = password
}
