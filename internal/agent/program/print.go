package program

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/etcdaccess"
	"github.com/pdmesh/pdmesh/internal/settings"
	"github.com/pdmesh/pdmesh/internal/vllmargs"
)

// print writes what is in force as a file that --config takes, and behind each setting that
// is no default where it is from. What else was found follows in comments.
func (c *config) print(w io.Writer) error {
	effective := map[string]any{
		"role": string(c.key.Role), "address": c.key.Address, "engine": c.engine, "host-id": c.hostID,
		"etcd-endpoints": etcdaccess.Written(c.etcdEndpoints, c.tls.etcd.On),
	}
	if len(c.labels) > 0 {
		effective["label"] = pairs(c.labels)
	}
	return Settings().Print(w, func(s settings.Setting) (any, string) {
		from := c.said.Sources[s.Name]
		if value, ok := effective[s.Name]; ok && value != "" {
			return value, from
		}
		return c.said.Raw(s.Name), from
	}, c.remarks()...)
}

// remarks are what was found and is no setting.
func (c *config) remarks() []string {
	var out []string
	line := func(name, value, from string) {
		if from != "" {
			from = "  # " + from
		}
		out = append(out, name+": "+value+from)
	}
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
		line("note", n, "")
	}
	return out
}

func pairs(m map[string]string) []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return out
}
