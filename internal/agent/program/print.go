package program

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/settings"
	"github.com/pdmesh/pdmesh/internal/vllmargs"
)

const masked = "********"

// print writes what is in force, a setting a line, and behind each that is no
// default where it is from.
func (c *config) print(w io.Writer, fs *pflag.FlagSet, lookupEnv func(string) (string, bool)) error {
	effective := map[string]string{
		"role": string(c.key.Role), "address": c.key.Address, "engine": c.engine, "model": c.model, "connector": c.connector,
		"engine-api-key": c.engineAPIKey, "etcd-endpoints": strings.Join(c.etcdEndpoints, ","), "host-id": c.hostID,
		"label": pairs(c.labels), "bootstrap-port": "", "p2p-port": "",
	}
	if ports := c.facts.Ports[instance.PortBootstrap]; len(ports) > 0 {
		effective["bootstrap-port"] = strconv.Itoa(ports[0])
	}
	if ports := c.facts.Ports[instance.PortP2P]; len(ports) > 0 {
		effective["p2p-port"] = strconv.Itoa(ports[0])
	}
	var out strings.Builder
	line := func(name, value, from string) {
		if value == "" {
			value = `""`
		}
		if from != "" {
			from = "  # " + from
		}
		fmt.Fprintf(&out, "%s: %s%s\n", name, instance.Printable(value, 0), instance.Printable(from, 0))
	}
	fs.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "print-config", "help", "version":
			return
		}
		env, value := settings.Variable(f.Name), f.Value.String()
		fromEnv, _ := lookupEnv(env)
		from := c.sources[f.Name]
		switch {
		case f.Changed:
			from = "flag --" + f.Name
		case fromEnv != "":
			from, value = env, fromEnv
		}
		if f.Hidden && from == "" {
			return
		}
		if e, ok := effective[f.Name]; ok {
			value = e
		}
		if value != "" && (f.Name == "engine-api-key" || f.Name == "etcd-password") {
			value = masked
		}
		line(f.Name, value, from)
	})
	for _, n := range []struct {
		name string
		n    int
	}{{"tp_size", c.facts.TPSize}, {"pp_size", c.facts.PPSize}, {"dp_size", c.facts.DPSize}} {
		if n.n > 0 {
			line(n.name, fmt.Sprint(n.n), fromCommand)
		}
	}
	if c.facts.KVRole != "" {
		line("kv_role", c.facts.KVRole, "")
	}
	if id := c.facts.EngineIDs["0"]; id != "" {
		line("engine_id", id, "")
	}
	if text := c.side.String(); text != "" {
		from := envSidePort
		if c.side.chosen {
			from = "free, by the engine's port; given to the engine as " + envSidePort
		}
		line("nixl_side_channel_port", text, from)
	}
	if c.events.Publishes {
		from := fromCommand
		if c.events.command != nil {
			from = "free; given to the engine"
		}
		line("kv_events_endpoint", c.events.Endpoint, from)
		line("kv_events_replay_endpoint", c.events.Replay, from)
	}
	if c.command != nil {
		line("command", strings.Join(vllmargs.Masked(c.argv()), " "), "")
	}
	for _, n := range c.notes {
		line("# note", n, "")
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func pairs(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return strings.Join(out, ",")
}
