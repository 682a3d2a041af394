package instance

import (
	"maps"
	"net"
	"slices"
	"strconv"
)

// Where each server has some ranks of a larger data-parallel group (hybrid and external
// load balancing), engines report their number in the group, and a request
// names them by that among those of the server, from 0.

// LocalRanks returns what an instance reports of its ranks by the numbers that requests name.
// Reports of other ranks are returned unchanged.
func LocalRanks[V any](in *Instance, by map[int]V) map[int]V {
	if _, ok := by[0]; ok || len(by) != in.Ranks() {
		return by
	}
	out := make(map[int]V, len(by))
	for i, rank := range slices.Sorted(maps.Keys(by)) {
		out[i] = by[rank]
	}
	return out
}

// EngineID is how the engine of a rank calls itself, "" if the record does not say it.
func (i *Instance) EngineID(rank int) string {
	ids := i.Record.EngineIDs
	if _, ok := ids["0"]; ok || len(ids) != i.Ranks() {
		return ids[strconv.Itoa(rank)]
	}
	by := make(map[int]string, len(ids))
	for text, id := range ids {
		n, err := strconv.Atoi(text)
		if err != nil {
			return ""
		}
		by[n] = id
	}
	return LocalRanks(i, by)[rank]
}

// Bootstrap returns host:port of the bootstrap server of a Mooncake prefill engine.
func (i *Instance) Bootstrap() string {
	host, _, _ := net.SplitHostPort(i.Address) // the address of every instance has both
	port := DefaultBootstrapPort
	if ports := i.Record.Ports[PortBootstrap]; len(ports) > 0 {
		port = ports[0]
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
