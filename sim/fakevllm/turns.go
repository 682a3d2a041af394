package fakevllm

import (
	"io"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
)

// What a model is told to say, see package answer.
type (
	Turn     = answer.Turn
	ToolCall = answer.ToolCall
)

// ReadTurns reads a JSON list of turns.
func ReadTurns(r io.Reader) ([]Turn, error) { return answer.ReadTurns(r) }
