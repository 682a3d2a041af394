package connector

import (
	"cmp"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// ascend is vllm-ascend's MooncakeConnectorV1 (kv_p2p/mooncake_connector.py). Its KV transfer works like
// that of NIXL. Prefill's answer has other members, which the proxy copies to decode without reading them.
type ascend struct{ nixl }

func (ascend) Name() string { return "ascend" }

// Unfit: prefill offers a KV transfer only if it ends by length, also in vllm-ascend
// 0.26.0rc1. A request to /v1/messages cannot ensure that.
func (ascend) Unfit(k openai.Kind, p Pair) string { return needsLength(k, p) }

// ascendLease is the default of VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT.
const ascendLease = 480 * time.Second

// Terms: a decode engine that needs memory ends a request with the stop reason
// "recomputed", and expects that the proxy sends the request again. Since 0.26.0rc1 a
// decode engine that refuses a request makes prefill free the blocks. RefusalSpends is
// true for older engines too: a new prefill is always safe.
func (ascend) Terms(in *instance.Instance) Terms {
	return Terms{Lease: cmp.Or(lease(in), ascendLease), RefusalSpends: true, GivesUp: "recomputed"}
}
