package connector

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// mooncake is vLLM's own MooncakeConnector (protocols.md 3.1): both legs run at
// once and carry the same transfer_id. Decode finds prefill through the bootstrap
// server of its record; the answer of prefill says nothing about the transfer.
type mooncake struct{}

// errNoBootstrap tells that the record of a prefill instance does not say where
// decode instances find it.
var errNoBootstrap = errors.New("its record names no bootstrap port")

func (mooncake) Name() string                      { return "mooncake" }
func (mooncake) Terms(*instance.Instance) Terms    { return Terms{} }
func (mooncake) Flow() Flow                        { return Concurrent }
func (mooncake) Handover([]byte) (Handover, error) { return Handover{}, nil }
func (mooncake) SharesPool() bool                  { return false }
func (mooncake) Rewriter(Handover) Rewriter        { return nil }
func (mooncake) NeedsPrefill() bool                { return false }

// Lacks: a leg to an engine of the other role would end it, and without the engine's
// id and its bootstrap server a decode instance waits for what nobody sends.
func (mooncake) Lacks(in *instance.Instance) error {
	switch kv := in.Record.KVRole; {
	case in.Role == instance.Prefill && kv == "kv_consumer", in.Role == instance.Decode && kv == "kv_producer":
		return fmt.Errorf("its engine is a %s, which a leg in the role %s would end", kv, in.Role)
	case in.Role == instance.Decode:
		return nil
	case len(in.Record.Ports[instance.PortBootstrap]) == 0:
		return errNoBootstrap
	}
	for rank := range in.Ranks() {
		if in.Record.EngineIDs[strconv.Itoa(rank)] == "" {
			return fmt.Errorf("its record names no engine id of rank %d", rank)
		}
	}
	return nil
}

// Unfit: a prefill whose only token ends the answer hands nothing over, and decode
// would wait for it for minutes (PR#46008); /v1/messages cannot forbid that.
func (mooncake) Unfit(k openai.Kind, p Pair) string {
	if k == openai.Messages {
		return alone.MessagesNeedLength
	}
	return tooOld(k, p)
}

func (mooncake) Prefill(r *openai.Request, p Pair) Leg {
	e := r.NewEdit()
	prefillEdit(e, p)
	e.Set(openai.FieldKVTransferParams,
		`{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`+transferID(p)+`"}`)
	return Leg{
		Body:   e.Body(),
		Header: []Field{{headerRank, strconv.Itoa(p.PrefillRank)}},
	}
}

func (mooncake) Decode(r *openai.Request, p Pair, _ Handover) Leg {
	e := decodeEdit(r, p)
	e.Set(openai.FieldKVTransferParams, `{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":`+
		quote("http://"+bootstrapAddress(p.Prefill))+`,"remote_engine_id":`+
		quote(p.Prefill.Record.EngineIDs[strconv.Itoa(p.PrefillRank)])+`,"transfer_id":"`+transferID(p)+`"}`)
	return Leg{Body: e.Body()}
}

func transferID(p Pair) string { return "xfer-" + p.Key }

// bootstrapAddress is host:port of an instance's bootstrap server.
func bootstrapAddress(in *instance.Instance) string {
	host, _, err := net.SplitHostPort(in.Address)
	ports := in.Record.Ports[instance.PortBootstrap]
	if err != nil || len(ports) == 0 { // Lacks keeps such an instance from being picked
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(ports[0]))
}

// quote gives a string as JSON: an engine's id may hold anything.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil { // a string always has a JSON form
		return `""`
	}
	return string(b)
}
