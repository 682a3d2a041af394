package main

import (
	"net"
	"time"

	"github.com/pdmesh/pdmesh/internal/config"
	"github.com/pdmesh/pdmesh/internal/httpapi"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/kvfollow"
	"github.com/pdmesh/pdmesh/internal/kvindex"
	"github.com/pdmesh/pdmesh/internal/netguard"
)

// newKVEvents makes what follows the engines' KV events, nil without --kv-events. An
// engine's endpoints are bound by --instance-allow as its address is.
func newKVEvents(cfg *config.Proxy, members kvfollow.Membership, asker prober, guard netguard.Policy) *kvfollow.Follower {
	if !cfg.KVEvents {
		return nil
	}
	dialer := &net.Dialer{
		Timeout: cfg.ConnectTimeout, Control: guard.Control,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	client := *asker.client.HTTP
	client.Timeout = cfg.ProbeTimeout
	return kvfollow.New(kvfollow.Options{
		Index: kvindex.New(0), Membership: members, Ask: kvfollow.Sources(&client), Dial: dialer.DialContext,
	})
}

// kvStatus is how the engines are followed, as /status shows it.
func (p *proxy) kvStatus() (out []httpapi.KVEvents) {
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
