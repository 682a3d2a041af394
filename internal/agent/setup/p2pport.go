package setup

import (
	"errors"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// The port of the P2P tier's side channel: vLLM's variable and default. Rank r of a
// data-parallel group listens at the port plus r, on whichever machine it runs.
const (
	envP2PPort     = "VLLM_P2P_SIDE_CHANNEL_PORT"
	defaultP2PPort = 5710
	p2pDialect     = "p2p"
)

// findP2P reads the port at which other engines fetch from an engine with a P2P tier. Proxies
// combine the port of the record, which is that of the first rank of the engine, with the host of
// the instance.
func (r *reader) findP2P(f *facts, c *Config, dialect string) {
	const name = "p2p-port"
	if dialect != p2pDialect {
		r.excludes(errors.New("a P2P port is for an engine whose OffloadingConnector has a tier of type p2p (--connector p2p)"), name)
		return
	}
	found := []fact{{f.env(envP2PPort), envP2PPort}, {strconv.Itoa(defaultP2PPort), fromDefault}}
	if tier := f.transfer.Offloading(); tier != nil && tier.Port > 0 {
		found = append([]fact{{strconv.Itoa(tier.Port), f.from + " (secondary_tiers)"}}, found...)
	}
	for i := range found {
		if base, err := strconv.Atoi(found[i].value); err == nil {
			found[i].value = strconv.Itoa(base + f.command.Ranks.First)
		}
	}
	if port := r.port(name, found...); port > 0 {
		c.Facts.Ports = map[string][]int{instance.PortP2P: {port}}
	}
}
