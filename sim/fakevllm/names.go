package fakevllm

import (
	"fmt"
	"io"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// Names of package connector, so that users of this package need only one import.
type (
	// Role is the role of an engine.
	Role = connector.Role
	// Mode is the KV transfer of an engine.
	Mode = connector.Mode
	// NoticePlan has the notifications of a prefill engine.
	NoticePlan = connector.NoticePlan
)

// The roles and modes.
const (
	RoleBoth    = connector.RoleBoth
	RolePrefill = connector.RolePrefill
	RoleDecode  = connector.RoleDecode

	Plain       = connector.Plain
	NIXL        = connector.NIXL
	NIXLPush    = connector.NIXLPush
	Ascend      = connector.Ascend
	P2P         = connector.P2P
	Mooncake    = connector.Mooncake
	MoRIIORead  = connector.MoRIIORead
	MoRIIOWrite = connector.MoRIIOWrite
	LMCache     = connector.LMCache
)

// Shared is the KV pool of the engines of one process in plain mode.
type Shared = transfer.Shared

// NewShared returns an empty Shared.
func NewShared() *Shared { return transfer.NewShared() }

// Names of package answer.
type (
	// Turn is a scripted answer of the model.
	Turn = answer.Turn
	// ToolCall is a call in a scripted answer.
	ToolCall = answer.ToolCall
)

// ReadTurns reads a JSON list of turns.
func ReadTurns(r io.Reader) ([]Turn, error) { return answer.ReadTurns(r) }

// KVEvents is vLLM's --kv-events-config.
type KVEvents = kvevents.Config

// ParseKVEvents reads the JSON of --kv-events-config.
func ParseKVEvents(text string) (*KVEvents, error) {
	k, err := kvevents.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%w: --kv-events-config: %w", ErrOptions, err)
	}
	return k, nil
}
