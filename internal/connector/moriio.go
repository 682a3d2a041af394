package connector

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/forward/bypass"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
)

// MoRIIO is the connector in the records of engines with vLLM's MoRIIOConnector (vLLM's
// kv_connector/v1/moriio). The transfer mode in the record determines the dialect, so
// engines of different modes cannot be paired.
const MoRIIO = "moriio"

// The names of its dialects.
const (
	moriioReadName  = "moriio_read"
	moriioWriteName = "moriio_write"
)

// moriioDialect returns the dialect of a transfer mode.
func moriioDialect(mode string) (string, error) {
	switch {
	case strings.EqualFold(mode, "READ"):
		return moriioReadName, nil
	case strings.EqualFold(mode, "WRITE"):
		return moriioWriteName, nil
	}
	return "", errors.New("connector " + MoRIIO + ": its record names no transfer mode: READ or WRITE")
}

// moriioLease is the default of defer_timeout.
const moriioLease = 60 * time.Second

// moriio has the properties that both modes share. Engines find each other by their ZMQ
// addresses. Every release looks for them in the ids of the legs. Later releases also look
// in kv_transfer_params, which /v1/responses needs, because there the id is not that of the
// header. The sizes must be correct: engines compute from them what they wait for.
type moriio struct{ base }

// Terms: after defer_timeout, prefill uses blocks that decode has not claimed for other requests. An
// engine computes the addresses of the other's blocks from its own block size. Since vLLM 0.21, a
// decode engine in READ mode that refuses a request makes prefill free the blocks (see nixl.Terms).
func (moriio) Terms(in *instance.Instance) Terms {
	return Terms{Lease: moriioLease, RefusalSpends: !older(in, release{0, 21}), Blocks: in.Record.BlockSize}
}

// Lacks: engines before 0.18 have no transfer_id, which the legs need to find each other.
func (moriio) Lacks(in *instance.Instance) error {
	if older(in, release{0, 18}) {
		return fmt.Errorf("its vLLM %s is older than 0.18, whose MoRI-IO has no transfer_id", instance.Printable(in.Record.Version, 32))
	}
	if _, err := ParseZMQAddress(in.Record.ZMQAddress); err != nil {
		return err
	}
	return tooManyRanks(in)
}

// Unfit: prefill transfers its KV cache only if it ends by length, and a request to
// /v1/messages cannot ensure that. On /v1/responses, the id is not that of the header.
// Engines are known to read the addresses from kv_transfer_params there only since 0.32.
func (moriio) Unfit(k openai.Kind, p Pair) string {
	first := release{0, 32}
	switch {
	case k == openai.Messages:
		return bypass.MessagesNeedLength
	case k == openai.Responses && (older(p.Prefill, first) || older(p.Decode, first)):
		return bypass.EngineTooOld
	}
	return ""
}

// moriioID is the X-Request-Id that names both engines. It does not contain the client's
// own id, because engines would use any text in it that looks like an address.
func moriioID(p Pair) string {
	return "___prefill_addr_" + p.Prefill.Record.ZMQAddress + "___decode_addr_" + p.Decode.Record.ZMQAddress + "_" + p.Key
}

func moriioTransfer(p Pair) string { return `"transfer_id":"tx-` + p.Key + `"` }

// moriioPrefill asks prefill for a transfer; peer describes decode. Engines require the
// two fields that are null.
func moriioPrefill(p Pair, peer string) string {
	return `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,` +
		peer + moriioTransfer(p) + `}`
}

// moriioPeer describes the engine of the other leg. A size that is not known is 0: the
// engine then uses its own size.
func moriioPeer(in *instance.Instance) string {
	z, err := ParseZMQAddress(in.Record.ZMQAddress)
	if err != nil { // Lacks keeps such an instance from being picked
		return ""
	}
	return `"remote_host":` + toJSON(z.Host) + `,"remote_handshake_port":` + strconv.Itoa(z.Handshake) +
		`,"remote_notify_port":` + strconv.Itoa(z.Notify) + `,"remote_dp_size":` + strconv.Itoa(max(1, in.Record.DPSize)) +
		`,"remote_tp_size":` + strconv.Itoa(max(0, in.Record.TPSize)) + `,`
}

// moriioRank returns the members that name the rank of prefill which waits for the blocks of
// decode. If decode has another rank, is_request_leader makes it contact prefill itself.
func moriioRank(p Pair) string {
	switch rank := `,"remote_dp_rank":` + strconv.Itoa(p.PrefillRank); {
	case p.Prefill.Record.DPSize <= 1 && p.Decode.Record.DPSize <= 1:
		return ""
	case p.PrefillRank == p.DecodeRank:
		return rank + `,"remote_dp_rank_override":true`
	default:
		return rank + `,"is_request_leader":true`
	}
}

// moriioWrite is the mode WRITE: decode sends prefill its block ids, and prefill writes into
// them. Both run at the same time. Decode does not notice that prefill has failed.
type moriioWrite struct{ moriio }

func (moriioWrite) Name() string { return moriioWriteName }
func (moriioWrite) Flow() Flow   { return Concurrent }

func (moriioWrite) Prefill(r *request.Request, p Pair) Leg {
	return Leg{Body: prefillBody(r, p, moriioPrefill(p, moriioPeer(p.Decode))), ID: moriioID(p)}
}

func (moriioWrite) Decode(r *request.Request, p Pair, _ TransferParams) Leg {
	params := `{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":null,"remote_block_ids":null,` +
		moriioPeer(p.Prefill) + moriioTransfer(p) + moriioRank(p) + `}`
	return Leg{Body: decodeBody(r, p, params), ID: moriioID(p)}
}

// moriioRead is the mode READ: decode reads the blocks that prefill's answer names. The
// proxy copies its kv_transfer_params to decode without reading them.
type moriioRead struct{ moriio }

func (moriioRead) Name() string { return moriioReadName }

// NeedsPrefill: a decode engine in READ mode assumes that all tokens of a prompt but the
// last are loaded, whatever the request says (vLLM 0.32, get_num_new_matched_tokens).
func (moriioRead) NeedsPrefill() bool { return true }

func (moriioRead) Prefill(r *request.Request, p Pair) Leg {
	return Leg{Body: prefillBody(r, p, moriioPrefill(p, ""))}
}

func (moriioRead) TransferParams(answer []byte) (TransferParams, error) {
	return nixl{}.TransferParams(answer)
}

func (moriioRead) Decode(r *request.Request, p Pair, h TransferParams) Leg {
	l := nixl{}.Decode(r, p, h)
	if !h.Empty() {
		l.ID = moriioID(p)
	}
	return l
}
