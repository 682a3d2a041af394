package leg

// Class is the class of a failed leg, which only judge.go determines. It decides all
// consequences of the failure; docs/failures.md has the same table and a test compares the two.
type Class string

// The classes.
const (
	NotConnected     Class = "not_connected"
	ConnectTimeout   Class = "connect_timeout"
	NoConnection     Class = "no_connection"
	NoSocket         Class = "no_socket"
	Untrusted        Class = "untrusted"
	Lost             Class = "lost"
	BrokeOff         Class = "broke_off"
	PrefillTimeout   Class = "prefill_timeout"
	FirstByteTimeout Class = "first_byte_timeout"
	IdleTimeout      Class = "idle_timeout"
	Removed          Class = "gone"
	Busy             Class = "busy"
	Unavailable503   Class = "status_503"
	Status5xx        Class = "status_5xx"
	Status4xx        Class = "status_4xx"
	EngineKey        Class = "engine_key"
	ModelMissing     Class = "model_missing"
	RankMissing      Class = "rank_missing"
	BadAnswer        Class = "bad_answer"
	TooLarge         Class = "too_large"
	ErrorEvent       Class = "error_event"
	Aborted          Class = "aborted"
	GaveUp           Class = "gave_up"
	OurEdit          Class = "our_edit"
	TransferExpired  Class = "handover_expired"
	PartnerFailed    Class = "partner_failed"
	NotNotified      Class = "not_notified"
	Overtaken        Class = "overtaken"
	NotContinued     Class = "not_continued"
	ClientGone       Class = "client_gone"
)

// TimedOut reports whether one of the proxy's time limits for an answer has passed.
func (c Class) TimedOut() bool {
	return c == PrefillTimeout || c == FirstByteTimeout || c == IdleTimeout
}

// OfInstance reports whether a failure concerns the whole instance, not only the
// data-parallel rank that the leg was sent to.
func (c Class) OfInstance() bool {
	switch c {
	case NotConnected, ConnectTimeout, NoConnection, NoSocket, Untrusted, Removed, EngineKey, ModelMissing, NotNotified:
		return true
	}
	return false
}

// Blame is the consequence of a failure for its instance.
type Blame uint8

// The values of Blame.
const (
	BlameNone Blame = iota
	// BlameEject ejects the instance at once; one answered probe readmits it.
	BlameEject
	// BlameStrike adds a strike to the instance, but only when another instance then
	// serves the same request: a request that fails everywhere is itself to blame.
	BlameStrike
	// BlameConfig writes an alarm to the log: the proxy's settings are wrong, no instance is at fault.
	BlameConfig
)

func (b Blame) String() string {
	return [...]string{"no instance", "ejected at once", "strike", "the configuration"}[b]
}

// Rule is the consequence of a class.
type Rule struct {
	Class Class
	What  string // description of the failure, for operators
	Retry bool   // on another instance; on the same one only if there is no other
	Free  bool   // does not count against --max-attempts or the retry budget
	// SameKV reports whether the instance cannot have used the KV transfer, so that another
	// decode instance may use it while its lease runs. The exceptions are an engine's own 4xx
	// and 503 if a refusal frees the blocks (connector.Terms).
	SameKV bool
	Blame  Blame
	Client string // the client's answer if no attempt follows
}

// Rules lists every class, in the order of the document.
func Rules() []Rule {
	return []Rule{
		{NotConnected, "connection refused, or no route", true, true, true, BlameEject, "503, Retry-After"},
		{ConnectTimeout, "no connection within --connect-timeout", true, true, true, BlameStrike, "503, Retry-After"},
		{NoConnection, "no connection for another reason, such as no free local port or a refused address", true, false, true, BlameStrike, "503, Retry-After"},
		{NoSocket, "no descriptor or memory left for a connection", true, false, true, BlameNone, "503, Retry-After"},
		{Untrusted, "TLS was refused, by the engine or by the proxy; the log has the reason", true, false, true, BlameStrike, "502"},
		{Lost, "the connection ended after the request was sent, before any byte of an answer", true, false, false, BlameStrike, "502"},
		{BrokeOff, "the answer broke off before it was committed", true, false, false, BlameStrike, "502"},
		{PrefillTimeout, "no prefill answer within --prefill-timeout or --busy-timeout", true, false, false, BlameStrike, "504"},
		{FirstByteTimeout, "no byte of an answer within --decode-first-byte-timeout, --non-stream-timeout or --busy-timeout", true, false, false, BlameStrike, "504"},
		{IdleTimeout, "no further byte of an answer within --idle-timeout or --busy-timeout, before it was committed", true, false, false, BlameStrike, "504"},
		{Removed, "the instance left, became `down`, was ejected, or restarted while the leg waited", true, true, false, BlameNone, "503, Retry-After"},
		{Busy, "429, 408 or 425; 503 of type `Service Unavailable`: vLLM's queue is full", true, false, true, BlameNone, "the engine's answer, Retry-After"},
		{Unavailable503, "any other 503", true, false, true, BlameStrike, "the engine's answer"},
		{Status5xx, "any other 5xx", true, false, false, BlameStrike, "the engine's answer"},
		{Status4xx, "400, 413, 422 and the rest of 4xx", false, false, false, BlameNone, "the engine's answer"},
		{EngineKey, "401 or 403 for the proxy's own key", false, false, false, BlameConfig, "502"},
		{ModelMissing, "404 for a model that the instance lists; blamed if it still lists the model after 2 s", true, false, true, BlameStrike, "the engine's answer"},
		{RankMissing, "400 for a data-parallel rank of the record that the engine does not have", true, true, false, BlameNone, "503, Retry-After"},
		{BadAnswer, "no HTTP, a cut stream, invalid JSON, or a status that no engine sends", true, false, false, BlameStrike, "502"},
		{TooLarge, "a head over 64 KiB, an event over 8 MiB, or an answer that exceeds --max-bodies-memory", false, false, false, BlameNone, "502; 503 with Retry-After if other bodies hold the memory"},
		{ErrorEvent, "an error event before the answer was committed, for example after a failed KV load", true, false, false, BlameStrike, "the event's status and error"},
		{Aborted, "a finish by `abort` before the answer was committed: the engine is shutting down or was paused", true, false, false, BlameStrike, "503, Retry-After"},
		{GaveUp, "vllm-ascend's stop reason `recomputed` before the answer was committed", true, false, false, BlameNone, "503, Retry-After"},
		{OurEdit, "400 to a prefill of one token with a forced tool call or a thinking budget; on `/v1/messages` and `/v1/responses` also 500", false, true, false, BlameNone, "nothing: the request becomes decode-only"},
		{TransferExpired, "--kv-lease-budget, or two thirds of the instance's KV lease, passed before the first content", true, false, false, BlameNone, "504"},
		{PartnerFailed, "the other leg of the pair failed, or its instance was removed", true, true, false, BlameNone, "the other leg's"},
		{NotNotified, "LMCache's notifications did not arrive within --lmcache-notify-timeout, or cannot be received", true, false, false, BlameNone, "504"},
		{Overtaken, "20 requests that began later on the instance were answered earlier", true, false, false, BlameNone, "504"},
		{NotContinued, "no instance continued a stream within 30 s (--continue-streams)", false, false, false, BlameNone, "the error of the lost leg"},
		{ClientGone, "the client left, or a stopping proxy cut the request", false, true, false, BlameNone, "no answer, 499 in metrics; 503 from a stopping proxy"},
	}
}

// Rule returns the rule of the class.
func (c Class) Rule() Rule {
	for _, r := range Rules() {
		if r.Class == c {
			return r
		}
	}
	return Rule{Class: c}
}
