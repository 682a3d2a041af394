package connector

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// lmcache is LMCacheConnectorV1 with LMCache's PD backend (protocols.md 5): prefill
// pushes its chunks into the buffer of a decode instance that its leg names, and each
// of its tensor-parallel ranks says so over ZeroMQ. Decode finds the chunks by what
// they hold: keys are made of the prompt's tokens, and of tags that both legs carry.
//
// Decode computes the last token of the prompt itself, and so the first of the answer:
// nothing of prefill's answer is used.
type lmcache struct{}

func (lmcache) Name() string                      { return "lmcache" }
func (lmcache) Flow() Flow                        { return Notified }
func (lmcache) Handover([]byte) (Handover, error) { return Handover{}, nil }
func (lmcache) SharesPool() bool                  { return false }
func (lmcache) NeedsPrefill() bool                { return false }
func (lmcache) Terms(*instance.Instance) Terms    { return Terms{} }
func (lmcache) Rewriter(Handover) Rewriter        { return nil }

// Lacks: prefill must be told the two ports of each rank of decode. An engine whose
// kv_role is for the other leg does not send, or does not look.
func (lmcache) Lacks(in *instance.Instance) error {
	ports := in.Record.Ports
	init, alloc := ports[instance.PortLMCacheInit], ports[instance.PortLMCacheAlloc]
	switch kv := in.Record.KVRole; {
	case in.Role == instance.Prefill && kv == "kv_consumer", in.Role == instance.Decode && kv == "kv_producer":
		return fmt.Errorf("its engine is a %s, which does not do the part of the role %s", kv, in.Role)
	case in.Role == instance.Prefill:
		return nil
	case len(init) == 0 || len(alloc) == 0:
		return errors.New("its record names no LMCache ports (lmcache_init, lmcache_alloc)")
	case len(init) != len(alloc):
		return fmt.Errorf("its record names %d ports in lmcache_init and %d in lmcache_alloc: one of each for every rank", len(init), len(alloc))
	}
	return nil
}

// Unfit: rank r of prefill sends to rank r of decode. Keys do not depend on how the
// single token of prefill ends, so that every kind of request can be handed over.
func (lmcache) Unfit(k openai.Kind, p Pair) string {
	if why := tooOld(k, p); why != "" || p.Decode == nil {
		return why
	}
	if ranks := p.Prefill.Record.TPSize * max(p.Prefill.Record.PPSize, 1); ranks > 0 && ranks != receivers(p.Decode) {
		return alone.RanksDiffer
	}
	return ""
}

// Prefill names the receiver of each rank. The tag keeps the chunks of this attempt
// apart: a receiver lists a chunk before it has arrived, and forgets it when it has
// been read, so that an attempt must not find what another one has announced.
func (lmcache) Prefill(r *request.Request, p Pair) Leg {
	e := r.NewEdit()
	prefillEdit(e, p)
	e.Set(request.FieldKVTransferParams, `{"disagg_spec":{"req_id":`+quote(p.Key)+`,"receiver_host":`+quote(receiverHost(p.Decode))+
		`,"receiver_init_port":`+list(p.Decode.Record.Ports[instance.PortLMCacheInit])+
		`,"receiver_alloc_port":`+list(p.Decode.Record.Ports[instance.PortLMCacheAlloc])+`},`+tag(p)+`}`)
	return Leg{Body: e.Body(), Awaits: Notices{ID: p.Key, Ranks: receivers(p.Decode)}}
}

func (lmcache) Decode(r *request.Request, p Pair, _ Handover) Leg {
	e := decodeEdit(r, p)
	e.Set(request.FieldKVTransferParams, `{`+tag(p)+`}`)
	return Leg{Body: e.Body()}
}

// tag is a part of the key of each chunk (LMCache's CacheEngineKey takes what begins
// with "lmcache.tag." from kv_transfer_params).
func tag(p Pair) string { return `"lmcache.tag.pdmesh":` + quote(p.Key) }

// receivers is how many ranks of a decode instance get chunks.
func receivers(in *instance.Instance) int { return len(in.Record.Ports[instance.PortLMCacheInit]) }

// receiverHost is where prefill reaches the ports: the record's own, or the host of
// the instance. LMCache puts a port behind it, so that IPv6 needs its brackets.
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

// list gives ports as JSON.
func list(ports []int) string {
	b := []byte{'['}
	for i, port := range ports {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(port), 10)
	}
	return string(append(b, ']'))
}
