package fakevllm

import "github.com/pdmesh/pdmesh/sim/fakevllm/request"

// reply is an admitted request as far as its answer depends on it.
type reply struct {
	*request.Request
	id       string // chatcmpl-<base> or cmpl-<base>
	base     string
	created  int64
	model    string // as which the model is served
	kvJSON   []byte // kv_transfer_params of the response, nil for null
	echoOnly bool
	limits   []int // max_tokens per prompt
	cached   int   // prompt tokens that needed no computing
	details  bool  // usage tells of them
	wrongKV  bool  // what was loaded is of another prompt
	turn     *Turn // what the model is told to say, nil where it says its own
}
