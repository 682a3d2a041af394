package connector

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// mooncake is vLLM's own MooncakeConnector (vLLM's kv_connector/v1/mooncake). Both legs
// run at the same time and carry the same transfer_id. Decode finds prefill by the
// bootstrap server in prefill's record. Prefill's answer has nothing about the transfer.
type mooncake struct{ base }

func (mooncake) Name() string { return "mooncake" }
func (mooncake) Flow() Flow   { return Concurrent }

// Terms: an engine has new engine ids after each start.
func (mooncake) Terms(in *instance.Instance) Terms {
	t := Terms{Blocks: in.Record.BlockSize}
	if in.Role == instance.Prefill {
		t.Bootstrap = in.Bootstrap()
	}
	return t
}

// Lacks: a leg with the wrong role crashes the engine (it asserts its kv_role). Without
// the engine id of a rank, decode would wait for blocks that no engine sends. A record
// without any ids lacks nothing, because the proxy asks the server in Terms for them.
func (mooncake) Lacks(in *instance.Instance) error {
	switch kv := in.Record.KVRole; {
	case in.Role == instance.Prefill && kv == "kv_consumer", in.Role == instance.Decode && kv == "kv_producer":
		return fmt.Errorf("its engine is a %s, which exits at a request in the role %s", kv, in.Role)
	case older(in, release{0, 16}):
		return fmt.Errorf("its engine is vLLM %s: MooncakeConnector before 0.16 has no transfer_id and another protocol, which is not supported", in.Record.Version)
	case in.Role == instance.Decode:
		return nil
	}
	if err := tooManyRanks(in); err != nil || len(in.Record.EngineIDs) == 0 {
		return err
	}
	for rank := range in.Ranks() {
		if in.EngineID(rank) == "" {
			return fmt.Errorf("its record names no engine id of rank %d", rank)
		}
	}
	return nil
}

// Unfit: prefill transfers its KV cache only if it ends by length; otherwise decode would
// wait for minutes (vLLM's PR#46008). A request to /v1/messages cannot ensure that.
func (mooncake) Unfit(k openai.Kind, p Pair) string { return needsLength(k, p) }

func (mooncake) Prefill(r *request.Request, p Pair) Leg {
	return Leg{
		Body:   prefillBody(r, p, `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"`+transferID(p)+`"}`),
		Header: []Field{{headerRank, strconv.Itoa(p.PrefillRank)}},
	}
}

func (mooncake) Decode(r *request.Request, p Pair, _ TransferParams) Leg {
	return Leg{Body: decodeBody(r, p, `{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":`+
		toJSON("http://"+p.Prefill.Bootstrap())+`,"remote_engine_id":`+
		toJSON(p.Prefill.EngineID(p.PrefillRank))+`,"transfer_id":"`+transferID(p)+`"}`)}
}

func transferID(p Pair) string { return "xfer-" + p.Key }

// toJSON returns a string or a list of ports as JSON. An engine id may contain any character.
func toJSON(v any) string {
	b, _ := json.Marshal(v) // neither has an error
	return string(b)
}
