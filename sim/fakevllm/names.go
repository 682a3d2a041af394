package fakevllm

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/sim/fakevllm/answer"
	"github.com/pdmesh/pdmesh/sim/fakevllm/connector"
	"github.com/pdmesh/pdmesh/sim/fakevllm/fault"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvevents"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/record"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// Roles, policies and transfer modes of engines; see packages connector and kvparams.
type (
	Role       = connector.Role
	Policy     = connector.Policy
	Mode       = kvparams.Mode
	NoticePlan = connector.NoticePlan
)

// The roles, policies and modes.
const (
	RoleBoth    = connector.RoleBoth
	RolePrefill = connector.RolePrefill
	RoleDecode  = connector.RoleDecode

	PolicyFail      = connector.PolicyFail
	PolicyRecompute = connector.PolicyRecompute

	Plain       = kvparams.Plain
	NIXL        = kvparams.NIXL
	NIXLPush    = kvparams.NIXLPush
	Ascend      = kvparams.Ascend
	P2P         = kvparams.P2P
	Mooncake    = kvparams.Mooncake
	MoRIIORead  = kvparams.MoRIIORead
	MoRIIOWrite = kvparams.MoRIIOWrite
	LMCache     = kvparams.LMCache
)

// Shared is the common state of the engines in one process.
type Shared = transfer.Shared

// NewShared returns an empty Shared.
func NewShared() *Shared { return transfer.NewShared() }

// Parts of a fault; see package fault.
type (
	Fault = fault.Fault
	Kind  = fault.Kind
	Stage = fault.Stage
)

// The kinds of faults.
const (
	FaultStatus     = fault.Status
	FaultHang       = fault.Hang
	FaultReset      = fault.Reset
	FaultClose      = fault.Close
	FaultSlow       = fault.Slow
	FaultErrorEvent = fault.ErrorEvent
	FaultGarbage    = fault.Garbage
	FaultNoKV       = fault.NoKV
	FaultDie        = fault.Die
	FaultAbort      = fault.Abort
	FaultRecomputed = fault.Recomputed
)

// The stages at which they happen, in order.
const (
	BeforeRead   = fault.BeforeRead
	AfterRead    = fault.AfterRead
	AfterHeaders = fault.AfterHeaders
	AfterRole    = fault.AfterRole
	AfterTokens  = fault.AfterTokens
)

// Request is one request as received, before any processing.
type Request = record.Request

// Journal is a journal of arrivals and ends, and JournalEntry a line of it; see package record.
type (
	Journal      = record.Journal
	JournalEntry = record.Entry
)

// NewJournal returns a journal that writes to w.
func NewJournal(w io.Writer) *Journal { return record.NewJournal(w) }

// Scripted answers of the model, see package answer.
type (
	Turn     = answer.Turn
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

// minor is the second number of a version, 0 if there is none.
func minor(version string) int {
	rest, _ := strings.CutPrefix(version, "0.")
	rest, _, _ = strings.Cut(rest, ".")
	n, err := strconv.Atoi(rest)
	if err != nil {
		return 0
	}
	return n
}
