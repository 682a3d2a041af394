package answer

import "github.com/pdmesh/pdmesh/sim/fakevllm/request"

// Reply is an admitted request as far as its answer depends on it.
type Reply struct {
	*request.Request
	ID         string // chatcmpl-<base> or cmpl-<base>
	Base       string
	Created    int64
	ServedAs   string // as which the model is served
	HandedOver []byte // kv_transfer_params of the response, nil for null
	EchoOnly   bool
	limits     []int // max_tokens per prompt
	Cached     int   // prompt tokens that needed no computing
	Details    bool  // usage tells of them
	WrongKV    bool  // what was loaded is of another prompt
	Told       *Turn // what the model is told to say, nil where it says its own
}
