package setup

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/discovery/access"
	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
)

// Print writes the active settings as a file for --config, with the source of each setting
// that is not a default. Other facts follow as comments.
func (c *Config) Print(w io.Writer) error {
	effective := map[string]any{
		"role": string(c.Key.Role), "address": c.Key.Address, "engine": c.Engine, "host-id": c.HostID,
		"etcd-endpoints": access.Written(c.EtcdEndpoints, c.TLS.Etcd.On),
	}
	if len(c.labels) > 0 {
		effective["label"] = pairs(c.labels)
	}
	return Settings().Print(w, func(s settings.Setting) (any, string) {
		from := c.values.Sources[s.Name]
		if value, ok := effective[s.Name]; ok && value != "" {
			return value, from
		}
		return c.values.Raw(s.Name), from
	}, c.remarks()...)
}

// remarks returns the facts without a setting.
func (c *Config) remarks() []string {
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
	}{{"tp_size", c.Facts.TPSize}, {"pp_size", c.Facts.PPSize}, {"dp_size", c.Facts.DPSize}} {
		if n.n > 0 {
			line(n.name, fmt.Sprint(n.n), fromCommand)
		}
	}
	if c.Facts.KVRole != "" {
		line("kv_role", c.Facts.KVRole, "")
	}
	if id := c.Facts.EngineIDs["0"]; id != "" {
		line("engine_id", id, "")
	}
	if text := c.Side.String(); text != "" {
		from := EnvSidePort
		if c.Side.Chosen {
			from = "free, by the engine's port; given to the engine as " + EnvSidePort
		}
		line("nixl_side_channel_port", text, from)
	}
	if c.Events.Publishes {
		from := fromCommand
		if c.Events.Command != nil {
			from = "free; given to the engine"
		}
		line("kv_events_endpoint", c.Events.Endpoint, from)
		line("kv_events_replay_endpoint", c.Events.Replay, from)
	}
	if c.Command != nil {
		line("command", strings.Join(vllmargs.Masked(c.Argv()), " "), "")
	}
	for _, n := range c.Notes {
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
