package forward

import (
	"fmt"
	"strings"
)

// Class is what a failed leg was, decided in one place (failure.go) from what
// is known of it. Everything that follows from a failure follows from its
// class; docs/failures.md shows the same table and a test compares the two.
type Class string

// The classes.
const (
	NotConnected     Class = "not_connected"
	ConnectTimeout   Class = "connect_timeout"
	NoConnection     Class = "no_connection"
	NoSocket         Class = "no_socket"
	Lost             Class = "lost"
	BrokeOff         Class = "broke_off"
	PrefillTimeout   Class = "prefill_timeout"
	FirstByteTimeout Class = "first_byte_timeout"
	IdleTimeout      Class = "idle_timeout"
	Gone             Class = "gone"
	Busy             Class = "busy"
	Unavailable503   Class = "status_503"
	Status5xx        Class = "status_5xx"
	Status4xx        Class = "status_4xx"
	EngineKey        Class = "engine_key"
	ModelMissing     Class = "model_missing"
	BadAnswer        Class = "bad_answer"
	ErrorEvent       Class = "error_event"
	OurEdit          Class = "our_edit"
	HandoverExpired  Class = "handover_expired"
	ClientGone       Class = "client_gone"
)

// timedOut tells that a limit of ours for an answer has passed.
func (c Class) timedOut() bool {
	return c == PrefillTimeout || c == FirstByteTimeout || c == IdleTimeout
}

// blame says who answers for a failure.
type blame uint8

const (
	blameNobody blame = iota
	// blameEject: out at once, a single probe brings it back.
	blameEject
	// blameStrike: one strike, but only when another instance then serves the
	// same request: a request that fails everywhere is itself to blame.
	blameStrike
	// blameConfig: an alarm in the log; no instance is at fault.
	blameConfig
)

func (b blame) String() string {
	return [...]string{"nobody", "ejected at once", "a strike, if another serves it", "our configuration"}[b]
}

// rule is what follows from a class.
type rule struct {
	class Class
	what  string // for people
	retry bool   // on another instance; on the same one only if there is no other
	free  bool   // does not count against --max-attempts or the retry budget
	// sameKV: the instance cannot have used the hand-over, so that another
	// decode instance may have it while its lease runs.
	sameKV bool
	blame  blame
	client string // what the client sees if this is the last word
}

// rules lists every class, in the order of the document.
func rules() []rule {
	return []rule{
		{NotConnected, "connection refused, or no route", true, true, true, blameEject, "503, Retry-After"},
		{ConnectTimeout, "no connection within --connect-timeout", true, true, true, blameStrike, "503, Retry-After"},
		{NoConnection, "no connection for another reason: no port left here for that address, an address that may not be used", true, false, true, blameStrike, "503, Retry-After"},
		{NoSocket, "no connection, since no descriptor or memory for one is left here", true, false, true, blameNobody, "503, Retry-After"},
		{Lost, "sent, and the connection ended before any byte of an answer", true, false, false, blameStrike, "502"},
		{BrokeOff, "the answer began and broke off before it was committed", true, false, false, blameStrike, "502"},
		{PrefillTimeout, "no prefill answer within --prefill-timeout", true, false, false, blameStrike, "504"},
		{FirstByteTimeout, "no byte of an answer in time", true, false, false, blameStrike, "504"},
		{IdleTimeout, "the answer stalled for --idle-timeout before it was committed", true, false, false, blameStrike, "504"},
		{Gone, "the instance left, turned down, was ejected, or restarted while the leg waited", true, true, false, blameNobody, "503, Retry-After"},
		{Busy, "429, 408 or 425", true, false, true, blameNobody, "the engine's answer"},
		{Unavailable503, "503: not taken", true, false, true, blameStrike, "the engine's answer"},
		{Status5xx, "any other 5xx", true, false, false, blameStrike, "the engine's answer"},
		{Status4xx, "400, 413, 422 and the rest of 4xx", false, false, false, blameNobody, "the engine's answer"},
		{EngineKey, "401 or 403 for the proxy's own key", false, false, false, blameConfig, "502"},
		{ModelMissing, "404 for a model that the record lists", true, false, true, blameStrike, "the engine's answer"},
		{BadAnswer, "no HTTP, a cut stream, JSON that is none, or a status no engine sends", true, false, false, blameStrike, "502"},
		{ErrorEvent, "an error event before the answer was committed (a failed KV load among them)", true, false, false, blameStrike, "the event's status and error"},
		{OurEdit, "400 to a prefill with a forced tool call, which our cut at one token causes", false, true, false, blameNobody, "nothing: decode serves alone"},
		{HandoverExpired, "--kv-lease-budget passed between the legs, or while the decode instance was silent", true, true, false, blameNobody, "nothing: a new prefill"},
		{ClientGone, "the client left", false, true, false, blameNobody, "nobody is there; 499 in metrics"},
	}
}

// rule finds what follows from the class.
func (c Class) rule() rule {
	for _, r := range rules() {
		if r.class == c {
			return r
		}
	}
	return rule{class: c}
}

// FailureTable renders the rules as the Markdown table of docs/failures.md.
func FailureTable() string {
	var b strings.Builder
	b.WriteString("| class | what happened | another instance | counts | KV of the prefill | blamed | last word to the client |\n")
	b.WriteString("|---|---|---|---|---|---|---|\n")
	yes := func(v bool, a, o string) string {
		if v {
			return a
		}
		return o
	}
	for _, r := range rules() {
		kv := "–"
		if r.retry {
			kv = yes(r.sameKV, "same", "new")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", r.class, r.what,
			yes(r.retry, "yes", "no"), yes(r.free, "no", "yes"), kv, r.blame, r.client)
	}
	return b.String()
}
