package proxy

import (
	"net"
	"time"

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvfollow"
	"github.com/pdmesh/pdmesh/internal/kvindex"
	"github.com/pdmesh/pdmesh/internal/netguard"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
)

// newKVIndex makes the index of what engines hold, nil where nobody asks for it: without
// --kv-events, and with policies that do not go by it.
func newKVIndex(cfg *config.Proxy) *kvindex.Index {
	if !cfg.KVEvents && cfg.PrefillPolicy != policy.KVAware && cfg.DecodePolicy != policy.KVAware {
		return nil
	}
	return kvindex.New(0)
}

// caches is the index as policies see it.
func caches(index *kvindex.Index) policy.Caches {
	if index == nil {
		return nil
	}
	return index
}

// newKVEvents makes what follows the engines' KV events, nil without an index. An
// engine's endpoints are bound by --instance-allow as its address is.
func newKVEvents(cfg *config.Proxy, index *kvindex.Index, members kvfollow.Membership, asker engines.Prober, guard netguard.Policy) *kvfollow.Follower {
	if index == nil {
		return nil
	}
	dialer := &net.Dialer{
		Timeout: cfg.ConnectTimeout, Control: guard.Control,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	client := *asker.Client.HTTP
	client.Timeout = cfg.ProbeTimeout
	return kvfollow.New(kvfollow.Options{
		Index: index, Membership: members, Ask: kvfollow.Sources(&client), Dial: dialer.DialContext,
	})
}

// kvStatus is how the engines are followed, as /status shows it.
func (p *app) kvStatus() (out []httpapi.KVEvents) {
	if p.kv == nil {
		return nil
	}
	for _, s := range p.kv.Status() {
		out = append(out, httpapi.KVEvents{
			Instance: s.Address, Rank: s.Rank, State: string(s.State), Error: instance.Printable(s.Error, 300),
			Blocks: s.Index.Blocks, Batches: s.Batches, Gaps: s.Gaps, LagSeconds: s.Lag.Seconds(),
		})
	}
	return out
}

// deaf tells of instances whose KV events nobody can follow as they are started.
func (p *app) deaf() map[string]string {
	if p.kv == nil {
		return nil
	}
	out := map[string]string{}
	for _, st := range p.kv.Status() {
		if st.Hint != "" && out[st.Address] == "" { // one rank is as the others
			out[st.Address] = st.Hint
		}
	}
	return out
}
