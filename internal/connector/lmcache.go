package connector

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// lmcache is LMCacheConnectorV1 with LMCache's PD backend (LMCache's pd_backend.py).
// The prefill leg names a decode instance. Prefill pushes its chunks into the buffer of
// that instance, and each of its tensor-parallel ranks then sends a notification over
// ZeroMQ. Decode finds the chunks by keys, which are made of the prompt's tokens and of
// tags that both legs carry.
//
// Decode itself computes the last token of the prompt, and so the first token of the
// answer. The proxy uses nothing of prefill's answer.
type lmcache struct{ base }

func (lmcache) Name() string { return "lmcache" }
func (lmcache) Flow() Flow   { return Notified }

// Lacks: the prefill leg has to name the two ports of each rank of decode. An engine
// with the kv_role of the other leg does not send chunks, or does not look for them.
func (lmcache) Lacks(in *instance.Instance) error {
	ports := in.Record.Ports
	init, alloc := ports[instance.PortLMCacheInit], ports[instance.PortLMCacheAlloc]
	switch kv := in.Record.KVRole; {
	case in.Role == instance.Prefill && kv == "kv_consumer", in.Role == instance.Decode && kv == "kv_producer":
		return fmt.Errorf("its engine is a %s, which cannot serve the role %s", kv, in.Role)
	case in.Role == instance.Prefill:
		return nil
	case len(init) == 0 || len(alloc) == 0:
		return errors.New("its record names no LMCache ports (lmcache_init, lmcache_alloc)")
	case len(init) != len(alloc):
		return fmt.Errorf("its record names %d ports in lmcache_init and %d in lmcache_alloc: one of each for every rank", len(init), len(alloc))
	}
	return nil
}

// Unfit: rank r of prefill sends to rank r of decode. Keys do not depend on how prefill's
// single token ends, so the KV cache of every kind of request can be transferred.
func (lmcache) Unfit(k openai.Kind, p Pair) string {
	if why := tooOld(k, p); why != "" || p.Decode == nil {
		return why
	}
	if ranks := p.Prefill.Record.TPSize * max(p.Prefill.Record.PPSize, 1); ranks > 0 && ranks != receivers(p.Decode) {
		return bypass.RanksDiffer
	}
	return ""
}

// Prefill names the receiver of each rank. The tag separates the chunks of this attempt
// from those of others. A receiver lists a chunk before it has arrived, and forgets it when
// it has been read, so an attempt must not find chunks of another attempt.
func (lmcache) Prefill(r *request.Request, p Pair) Leg {
	params := `{"disagg_spec":{"req_id":` + toJSON(p.Key) + `,"receiver_host":` + toJSON(receiverHost(p.Decode)) +
		`,"receiver_init_port":` + toJSON(p.Decode.Record.Ports[instance.PortLMCacheInit]) +
		`,"receiver_alloc_port":` + toJSON(p.Decode.Record.Ports[instance.PortLMCacheAlloc]) + `},` + tag(p) + `}`
	return Leg{Body: prefillBody(r, p, params), Awaits: Notices{ID: p.Key, Ranks: receivers(p.Decode)}}
}

func (lmcache) Decode(r *request.Request, p Pair, _ TransferParams) Leg {
	return Leg{Body: decodeBody(r, p, `{`+tag(p)+`}`)}
}

// tag becomes a part of each chunk's key: LMCache's CacheEngineKey takes the members of
// kv_transfer_params that begin with "lmcache.tag.".
func tag(p Pair) string { return `"lmcache.tag.pdmesh":` + toJSON(p.Key) }

// receivers returns the number of ranks of a decode instance that get chunks.
func receivers(in *instance.Instance) int { return len(in.Record.Ports[instance.PortLMCacheInit]) }

// receiverHost returns the host at which prefill reaches the ports: that of the record,
// else that of the instance's address. LMCache appends a port, so IPv6 needs brackets.
func receiverHost(in *instance.Instance) string {
	host := in.Record.ReceiverHost
	if host == "" {
		host, _, _ = net.SplitHostPort(in.Address)
	}
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		host = "[" + host + "]"
	}
	return host
}
