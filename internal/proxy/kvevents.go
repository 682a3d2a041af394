package proxy

import (
	"net"
	"time"

	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvcache/indexmem"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvfollow"
	"github.com/pdmesh/pdmesh/internal/kvcache/kvindex"
	"github.com/pdmesh/pdmesh/internal/proxy/config"
	"github.com/pdmesh/pdmesh/internal/proxy/engines"
	"github.com/pdmesh/pdmesh/internal/sched/policy"
	"github.com/pdmesh/pdmesh/internal/transport/netguard"
)

// kvRoles returns the roles whose KV events are followed: both with --kv-events, otherwise prefill if
// its policy uses them. Only prefill policies learn the tokens of prompts, which name the blocks.
func kvRoles(cfg *config.Proxy) []instance.Role {
	switch {
	case cfg.KVEvents:
		return instance.Roles()
	case cfg.PrefillPolicy == policy.KVAware:
		return []instance.Role{instance.Prefill}
	}
	return nil
}

// newKVIndex returns the index of KV blocks in engines, or nil if no KV events are followed.
func newKVIndex(cfg *config.Proxy, memory *indexmem.Budget) *kvindex.Index {
	if len(kvRoles(cfg)) == 0 {
		return nil
	}
	return kvindex.New(memory)
}

// newKVEvents returns the follower of KV events, or nil without an index. --instance-allow also applies
// to the endpoints that engines publish.
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
		Index: index, Membership: members, Roles: kvRoles(cfg), Ask: kvfollow.Sources(&client), Dial: dialer.DialContext,
	})
}

// kvStatus returns the state of the KV event streams for /status.
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

// unfollowed returns a hint for each instance whose KV events cannot be followed because of its
// command line.
func (p *app) unfollowed() map[string]string {
	if p.kv == nil {
		return nil
	}
	out := map[string]string{}
	for _, st := range p.kv.Status() {
		if st.Hint != "" && out[st.Address] == "" { // the ranks of an instance are started alike
			out[st.Address] = st.Hint
		}
	}
	return out
}
