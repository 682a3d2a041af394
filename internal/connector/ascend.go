package connector

import (
	"time"

	"github.com/pdmesh/pdmesh/internal/alone"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// ascend is vllm-ascend's MooncakeConnectorV1 (protocols.md 4.5). It hands over as
// NIXL does, with members of its own, which go to decode unread.
type ascend struct{ nixl }

func (ascend) Name() string { return "ascend" }

// Unfit: nothing is handed over by a prefill whose only token ends the answer, and
// /v1/messages cannot forbid that.
func (ascend) Unfit(k openai.Kind, p Pair) string {
	if k == openai.Messages {
		return alone.MessagesNeedLength
	}
	return tooOld(k, p)
}

// ascendLease is the default of VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT.
const ascendLease = 480 * time.Second

// Terms: a decode engine that needs room ends a request with the stop reason
// "recomputed", and expects that somebody sends it again. Since 0.26 one that refuses
// a request frees the blocks of its prefill; whether one before 0.26 did makes no
// difference to what is safe.
func (ascend) Terms(in *instance.Instance) Terms {
	t := Terms{Lease: ascendLease, RefusalSpends: true, GivesUp: "recomputed"}
	if stated := lease(in); stated > 0 {
		t.Lease = stated
	}
	return t
}
