package vllmargs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ErrEvents is wrapped by errors about a --kv-events-config that cannot be read.
var ErrEvents = errors.New("unusable configuration of KV events")

const flagEvents = "kv-events-config"

// Events is the content of --kv-events-config.
type Events struct {
	Publishes bool   // by ZeroMQ
	Endpoint  string // of data-parallel rank 0; "" for vLLM's default
	Replay    string // likewise; "" if there is none
	Topic     string
}

// DefaultEvents is vLLM's default endpoint.
const DefaultEvents = "tcp://*:5557"

// enabled is a bool in any form that vLLM accepts; false for anything else.
type enabled bool

// UnmarshalJSON implements json.Unmarshaler.
func (e *enabled) UnmarshalJSON(b []byte) error {
	*e = enabled(slices.Contains([]string{"true", "t", "yes", "y", "on", "1"}, strings.ToLower(strings.Trim(string(b), `"`))))
	return nil
}

// ParseEvents reads the JSON of --kv-events-config.
func ParseEvents(text string) (Events, error) {
	var raw struct {
		Enabled   enabled `json:"enable_kv_cache_events"`
		Publisher string  `json:"publisher"`
		Endpoint  string  `json:"endpoint"`
		Replay    string  `json:"replay_endpoint"`
		Topic     string  `json:"topic"`
	}
	if s := strings.TrimSpace(text); s == "" || s[0] != '{' {
		return Events{}, fmt.Errorf("%w: %q is not a JSON object: quote it as one argument, '{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\"}'",
			ErrEvents, instance.Printable(text, 60))
	}
	raw.Publisher = "zmq"
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return Events{}, fmt.Errorf("%w: %s", ErrEvents, instance.Printable(err.Error(), 120))
	}
	return Events{Publishes: bool(raw.Enabled) && raw.Publisher == "zmq", Endpoint: raw.Endpoint, Replay: raw.Replay, Topic: raw.Topic}, nil
}

// Binds reports whether vLLM's publisher binds to an endpoint. To a TCP endpoint without a wildcard
// it connects instead, so no subscriber can connect to it.
func Binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") || Inside(endpoint)
}

// Inside reports whether an endpoint cannot be reached from another machine.
func Inside(endpoint string) bool {
	return strings.HasPrefix(endpoint, "ipc://") || strings.HasPrefix(endpoint, "inproc://")
}

// EndpointPort returns the port of rank 0; 0 if there is none, as in ipc://, or if the system chooses it.
func EndpointPort(endpoint string) int {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(rest[strings.LastIndexByte(rest, ':')+1:])
	if err != nil || n < 1 || n > 65535 {
		return 0
	}
	return n
}

// EndpointHost returns the host of a tcp endpoint; "" if it is a wildcard.
func EndpointHost(endpoint string) string {
	rest := strings.TrimPrefix(endpoint, "tcp://")
	host := strings.Trim(rest[:max(strings.LastIndexByte(rest, ':'), 0)], "[]")
	if ip, err := netip.ParseAddr(host); host == "*" || err == nil && ip.IsUnspecified() {
		return ""
	}
	return host
}

// EndpointOf returns the endpoint of a rank, given the endpoint of rank 0, with host in place of a wildcard;
// "" if the port is not known.
func EndpointOf(rank int, endpoint, host string) string {
	port := EndpointPort(endpoint)
	if port == 0 {
		return ""
	}
	return "tcp://" + net.JoinHostPort(cmp.Or(EndpointHost(endpoint), host), strconv.Itoa(port+rank))
}

// Sources returns the endpoints, at a host, of each rank that the command starts. Its keys are the rank
// numbers in the whole group, which vLLM adds to the ports. It returns nil if the ports are unknown or the
// publisher connects.
func (e *Events) Sources(host string, ranks Ranks) map[string]instance.KVEvents {
	if !e.Publishes || EndpointPort(e.Endpoint) == 0 || !Binds(e.Endpoint) {
		return nil
	}
	out := map[string]instance.KVEvents{}
	for rank := ranks.First; rank < ranks.First+min(max(ranks.Local, 1), instance.MaxRanks); rank++ {
		out[strconv.Itoa(rank)] = instance.KVEvents{Endpoint: EndpointOf(rank, e.Endpoint, host), ReplayEndpoint: EndpointOf(rank, e.Replay, host), Topic: e.Topic}
	}
	return out
}

// SetIn returns a command line with the endpoints of e. The rest of the configuration is unchanged.
func (e *Events) SetIn(argv []string) ([]string, error) {
	out := slices.Clone(argv)
	whole := -1
	for i, a := range slices.Backward(out) {
		name, _, _ := strings.Cut(a, "=")
		if !strings.HasPrefix(name, "--") {
			continue
		}
		switch head, _, isField := strings.Cut(strings.ReplaceAll(name[2:], "_", "-"), "."); {
		case head != flagEvents:
		case isField: // fields take precedence
			more := []string{"--" + flagEvents + ".endpoint=" + e.Endpoint}
			if e.Replay != "" {
				more = append(more, "--"+flagEvents+".replay_endpoint="+e.Replay)
			}
			end := i + 1 // after the flag and its value: the last one counts
			if !strings.Contains(a, "=") {
				end++
			}
			return slices.Insert(out, min(end, len(out)), more...), nil
		case whole < 0:
			whole = i
		}
	}
	if whole < 0 {
		return out, fmt.Errorf("%w: the command has no --%s", ErrEvents, flagEvents)
	}
	var err error
	if name, text, joined := strings.Cut(out[whole], "="); joined {
		text, err = e.merged(text)
		out[whole] = name + "=" + text
	} else if whole+1 < len(out) {
		out[whole+1], err = e.merged(out[whole+1])
	}
	return out, err
}

// merged returns the JSON object text with the endpoints in it.
func (e *Events) merged(text string) (string, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return "", fmt.Errorf("%w: %w", ErrEvents, err)
	}
	for name, endpoint := range map[string]string{"endpoint": e.Endpoint, "replay_endpoint": e.Replay} {
		if endpoint == "" {
			continue
		}
		all[name], _ = json.Marshal(endpoint) // a string has no error
	}
	b, err := json.Marshal(all)
	return string(b), err
}
