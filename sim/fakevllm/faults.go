package fakevllm

import "github.com/pdmesh/pdmesh/sim/fakevllm/fault"

// What a fault is made of, see package fault.
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

// Script adds faults behind those already scripted.
func (s *Server) Script(faults ...Fault) error { return s.faults.Add(faults) }

// ClearFaults ends all scripted faults; those that happen now go on.
func (s *Server) ClearFaults() { s.faults.Clear() }
