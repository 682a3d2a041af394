package instance

import (
	"maps"
	"net"
	"slices"
	"strconv"
)

// If a server has only some ranks of a data-parallel group (hybrid and external load
// balancing), engines report the number of a rank in the group. Requests name the rank by
// its number on the server, from 0.

// LocalRanks returns reports about an instance's ranks by the numbers that requests name. It
// returns by itself if it has rank 0, or not as many ranks as the instance.
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

// EngineID returns the engine id of a rank, "" if the record has none.
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
