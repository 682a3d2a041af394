package program

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/agent"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/etcdaccess"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/settings"
	"github.com/pdmesh/pdmesh/internal/vllm"
	"github.com/pdmesh/pdmesh/internal/zmq"
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
	tls           secured
	ttl           time.Duration
	probeInterval time.Duration
	probeTimeout  time.Duration
	slowAfter     time.Duration
	drainTimeout  time.Duration
	kvLease       time.Duration
	socket        string // "": the default one; socketOff: none
	logLevel      string
	logFormat     string

	zmqRegister   string // endpoint; "" beside an engine
	allowLoopback bool   // of engines that register themselves

	facts instance.Record // what the engine's surroundings say: kv_role, sizes, ids
	notes []string        // what the person who starts it should know

	side      sideChannel // of a NIXL engine that this agent starts
	events    kvEvents    // of an engine that this agent starts
	notices   noticeConfig
	bootstrap string // host:port of a Mooncake prefill engine's bootstrap server; "" for none

	command         []string // of the engine; nil when somebody else starts it
	restart         bool     // after a failure
	restartDelay    time.Duration
	restartDelayMax time.Duration
	startTimeout    time.Duration // 0: none
	stopTimeout     time.Duration
	dieWith         bool

	printConfig bool
	said        *settings.Values // what was given and found, and where
}

// The values of --restart.
const (
	restartNo        = "no"
	restartOnFailure = "on-failure"
)

// load reads flags over the environment (PD_<NAME>) over the file over what is found
// about the engine (see facts) over defaults. command is what stands behind "--". Its
// error lists everything that is wrong, a line each.
func load(fs *pflag.FlagSet, lookupEnv func(string) (string, bool), command []string) (config, error) {
	c := config{command: command}
	r := reader{}
	v, err := r.settings(&c).Load(fs, lookupEnv, "")
	if err != nil {
		return config{}, err
	}
	r.input, c.said = &input{Values: v}, v
	if err := v.Fill(); err != nil {
		r.wrong(err)
	}
	f := find(r.input, command, lookupEnv)
	c.restart = r.restarts()
	c.model, c.engineAPIKey = r.text("model", f.models()...), r.text("engine-api-key", f.keys()...)
	r.endpoints(&c, f)
	r.readTLS(&c)
	c.notes = f.notes
	if c.zmqRegister != "" {
		r.checkBridge(&c)
	} else {
		r.instance(&c, f)
	}
	if _, err := schema.NewLayout(c.etcdPrefix); err != nil {
		r.fail("etcd-prefix", err)
	}
	r.checkTimes(&c)
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

// instance reads what is about the one engine of an agent.
func (r *reader) instance(c *config, f *facts) {
	c.connector = r.text("connector", f.connectors()...)
	if _, err := connector.Canonical(c.connector); err != nil { // every proxy would reject the record
		r.fail("connector", err)
	}
	c.key = r.key(f, allLoopback(c.etcdEndpoints))
	c.labels = r.allLabels(f.labels())
	c.facts.KVRole = f.kvRole(c.key.Role, c.connector)
	f.record(&c.facts)
	c.side = f.findSideChannel(c.key.Address)
	c.notes = f.notes
	r.checkCommand(c)
	r.checkEngine(c, f)
	c.bootstrap = r.findBootstrap(f, c)
	r.findP2P(f, c)
	f.findEvents(c)
	c.notices = r.findLMCache(f, c)
	c.notes = f.notes
	if c.key.Address != "" && instance.IsLoopback(c.key.Address) && !r.allowLoopback && !allLoopback(c.etcdEndpoints) {
		r.fail("address", errors.New(c.key.Address+" is a loopback address, but etcd is on another machine, whose proxies would look for the engine on their own: give the address others reach it by, or --allow-loopback"))
	}
}

// checkBridge refuses what is about one engine where engines register themselves. From
// the environment it may be meant for other agents of this image.
func (r *reader) checkBridge(c *config) {
	c.allowLoopback = r.allowLoopback || allLoopback(c.etcdEndpoints)
	if _, err := zmq.ParseEndpoint(c.zmqRegister); err != nil {
		r.fail("zmq-register", err)
	}
	if c.command != nil {
		r.fail("zmq-register", errors.New("is for engines that somebody else starts, not for a command behind --"))
	}
	for _, name := range []string{"role", "address", "engine", "connector", "bootstrap-port", "kv-transfer-config", "label"} {
		if r.FromFlag(name) {
			r.fail(name, errors.New("is about one engine; with --zmq-register engines say it themselves"))
		}
	}
}

// input is what the person who starts the agent has said, and what is wrong with it.
type input struct {
	*settings.Values
	errs []error
}

// reader makes a config of it.
type reader struct {
	*input

	// Settings that are no part of config as they are written.
	labels        []string
	restart       string
	passwordFile  string
	allowLoopback bool
	shortTTL      bool
	file          string
}

// text is a setting as given, or else the first of what was found.
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

// wrong notes an error.
func (in *input) wrong(err error) { in.errs = append(in.errs, err) }

// fail notes an error of a setting.
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

// endpoints are those of etcd that were given, or that mooncake.json names.
func (r *reader) endpoints(c *config, f *facts) {
	if found := f.endpoints(); found != nil {
		c.etcdEndpoints = found
		return
	}
	given := c.etcdEndpoints
	var err error
	c.etcdEndpoints, c.tls.etcd.On, err = etcdaccess.ParseEndpoints(given)
	if err != nil {
		r.fail("etcd-endpoints", err)
	} else if len(c.etcdEndpoints) == 0 && len(r.errs) == 0 {
		r.fail("etcd-endpoints", errors.New("is empty: an agent needs etcd, e.g. 127.0.0.1:2379"))
	}
}

// Bounds of labels: they travel in every record.
const (
	maxLabels    = 32
	maxLabelSize = 128
)

func (r *reader) allLabels(found map[string]string) map[string]string {
	out := found
	for _, s := range r.labels {
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

func (r *reader) checkEngine(c *config, f *facts) {
	if c.engine = r.text("engine", f.findEngine()); c.engine == "" {
		c.engine = "http://" + c.key.Address
		return
	}
	if err := vllm.CheckBase(c.engine); err != nil {
		r.fail("engine", err)
	}
}

// checkCommand refuses what would mean nothing.
func (r *reader) checkCommand(c *config) {
	if c.command != nil {
		return
	}
	for _, name := range []string{"restart", "restart-delay", "restart-delay-max", "start-timeout", "stop-timeout", "engine-dies-with-agent"} {
		// From the environment it may be meant for other agents of this image.
		if r.FromFlag(name) {
			r.fail(name, errors.New("is for an engine that this agent starts, as in agent ... -- vllm serve MODEL"))
		}
	}
}

func (r *reader) checkTimes(c *config) {
	if len(r.errs) > 0 {
		return // a duration that could not be read is zero here
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
		{"ttl", c.ttl, least, maxTTL},
		{"probe-interval", c.probeInterval, 50 * time.Millisecond, time.Minute},
		{"probe-timeout", c.probeTimeout, 50 * time.Millisecond, time.Minute},
		{"slow-after", c.slowAfter, time.Millisecond, time.Hour},
		{"drain-timeout", c.drainTimeout, time.Millisecond, 24 * time.Hour},
		{"kv-lease", c.kvLease, 0, time.Hour},
		{"restart-delay", c.restartDelay, time.Millisecond, time.Hour},
		{"restart-delay-max", c.restartDelayMax, c.restartDelay, 24 * time.Hour},
		{"start-timeout", c.startTimeout, 0, 24 * time.Hour},
		{"stop-timeout", c.stopTimeout, time.Millisecond, time.Hour},
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
