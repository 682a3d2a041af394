package connector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
)

// nixl are vLLM's NixlConnector, pull and push, and vllm-ascend's: prefill answers with
// kv_transfer_params, and decode fetches by them.
type nixl struct{ *ledgers }

// Leg knows what the request asked for.
func (n *nixl) Leg(*Request) Leg { return &nixlLeg{n: n} }

type nixlLeg struct {
	quiet
	n      *nixl
	params NIXLParams
}

// Begin loads what the request names. An engine that would have crashed answers an error.
func (l *nixlLeg) Begin(r *Request) *pydantic.Error {
	n := l.n
	l.params = ParseNIXL(r.KV, n.Mode)
	local := n.Role != RolePrefill
	switch l.params.Form {
	case Produce:
		local = false
	case Fatal:
		n.Count.BadParam(r.ID, l.params.Why)
		n.Count.Crashes.Add(1)
		return pydantic.InternalError()
	case Bad:
		n.Count.BadParam(r.ID, l.params.Why)
		n.Log.WithField("request_id", r.ID).Warnf("got invalid KVTransferParams: %s", l.params.Why)
		if local {
			n.Count.Recomputed.Add(1)
		}
	case Load:
		if len(r.Prompts) > 1 || r.N > 1 || r.PromptLogprobs != nil {
			// An assertion of the connector fails for such a request and takes
			// the whole engine down (CVE-2026-94623).
			n.Count.Crashes.Add(1)
			return pydantic.InternalError()
		}
		if err := l.load(r); err != nil {
			n.refuse(r, err)
			return nil
		}
		n.loaded(r)
		local = false
	case Absent:
	}
	if local {
		n.countLocal(r)
	}
	return nil
}

// load fetches the blocks. Pull is a one-sided read: after the end of the lease the present
// content of the blocks is taken for the prompt's, and the answer is wrong. The same happens if
// prefill has restarted with the same engine id.
func (l *nixlLeg) load(r *Request) error {
	err := l.fetch(r)
	unknown := err != nil && strings.Contains(err.Error(), transfer.ErrUnknown.Error()) // the side channel sends the text
	if l.n.Mode == NIXL && (errors.Is(err, transfer.ErrExpired) || l.n.FixedID && unknown) {
		l.n.mislead(r, err.Error())
		return nil
	}
	return err
}

// fetch takes it over the side channel.
func (l *nixlLeg) fetch(r *Request) error {
	n, c := l.n, l.params.Claim
	c.Prompt, c.Base, c.Version = promptHash(r.Prompts[0]), n.meeting(r), n.handshake()
	if c.Token == "" && !n.RewrittenParams {
		return transfer.ErrTampered
	}
	addr := net.JoinHostPort(l.params.Host, strconv.Itoa(l.params.Port))
	return transfer.Ask(r.HTTP.Context(), addr, transfer.Question{Op: "take", Claim: c})
}

// meeting is the id by which the two legs know each other. In push mode that is the
// engine's own, which the kind of the route is a part of.
func (n *nixl) meeting(r *Request) string {
	if n.Mode == NIXLPush {
		return r.ID
	}
	return r.Base
}

// End registers the finished prefill and renders its transfer params. Only the first of several
// prompts has them.
func (l *nixlLeg) End(r *Request, finish string, answered bool) {
	n := l.n
	back := n.Bidirectional && n.Role == RoleDecode
	kept := finish == "length" || finish == "stop" && n.Mode != Ascend
	if !answered || r.NoKV || l.params.Form != Produce && !back || !kept {
		return
	}
	requestID := r.ID + "-" + model.Hex16(model.Mix(uint64(time.Now().UnixNano())))[:8]
	h := transfer.Offer{Prompt: promptHash(r.Prompts[0]), Token: NewToken(), Free: r.Engine.Detach()}
	if r.HTTP.Header.Get("X-Request-Id") != "" {
		h.Base = n.meeting(r)
	}
	token := h.Token
	if n.RewrittenParams {
		h.Token = ""
	}
	rank := n.of(r)
	rank.Put(requestID, h, time.Now())
	n.Count.TransfersMade.Add(1)
	host, port := n.advertised(rank.side)
	r.TransferParams = AppendNIXL(make([]byte, 0, 768), n.Mode, rank.EngineID, requestID, host, port, len(r.Prompts[0]), token)
}

// Refuse has prefill free the blocks of a request that this engine refuses: since
// vLLM 0.21 a request that only frees them runs in its place.
func (n *nixl) Refuse(ctx context.Context, kv []byte) {
	if n.Mode == Ascend || Minor(n.Version) < 21 {
		return
	}
	k := ParseNIXL(kv, n.Mode)
	if k.Form != Load {
		return
	}
	_ = transfer.Ask(ctx, net.JoinHostPort(k.Host, strconv.Itoa(k.Port)), transfer.Question{Op: "free", Claim: k.Claim}) // else its lease ends
}

// Minor returns the second number of a version of vLLM, 0 if there is none.
func Minor(version string) int {
	rest, _ := strings.CutPrefix(version, "0.")
	rest, _, _ = strings.Cut(rest, ".")
	n, err := strconv.Atoi(rest)
	if err != nil {
		return 0
	}
	return n
}

func (n *nixl) Inspect(r *Request) string {
	switch produces := ParseNIXL(r.KV, n.Mode).Form == Produce; {
	case n.Role == RolePrefill && !produces:
		return notPrefill
	case n.Role == RoleDecode && produces:
		return isPrefill
	}
	return ""
}

// ledgers are the offers of an engine's ranks and the side channels by which decodes
// fetch them, as NIXL and P2P have them.
type ledgers struct {
	base
	ranks []rank
}

type rank struct {
	*transfer.Ledger
	side *transfer.Side // nil until it is started
}

func newLedgers(b base) *ledgers {
	l := &ledgers{base: b}
	for _, id := range b.EngineIDs {
		l.ranks = append(l.ranks, rank{Ledger: transfer.NewLedger(id, b.handshake(), b.Lease, b.Mode == P2P, b.Mode == NIXLPush)})
	}
	return l
}

// handshake is the version that a peer must have, too, "" if that does not matter.
func (b *base) handshake() string {
	if b.Mode != NIXL && b.Mode != NIXLPush {
		return ""
	}
	return b.Version
}

// Start brings up the side channels, that of each rank at the first one's port plus
// its number where that is configured.
func (l *ledgers) Start(ctx context.Context) error {
	host, first, err := net.SplitHostPort(l.SideChannelAddr)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	for i := range l.ranks {
		at := 0
		if port > 0 {
			at = port + i
		}
		r := &l.ranks[i]
		if r.side, err = transfer.StartSide(ctx, net.JoinHostPort(host, strconv.Itoa(at)), r.Answer); err != nil {
			return err
		}
	}
	return nil
}

// Close ends them.
func (l *ledgers) Close() {
	for i := range l.ranks {
		l.ranks[i].side.Close()
	}
}

func (l *ledgers) Port(rank int) int { return l.ranks[rank].side.Port() }

func (l *ledgers) Transfers(rank int) (h Transfers) {
	h.Waiting, h.Expired = l.ranks[rank].Counts(time.Now())
	return h
}

// of is the rank that a request was given to.
func (l *ledgers) of(r *Request) *rank { return &l.ranks[r.Engine.Core.Rank] }

// p2p is vLLM's OffloadingConnector with a tier of type p2p: prefill keeps the blocks under the
// kv_request_id of its request, and decode fetches by that.
type p2p struct {
	*ledgers
	quiet
}

// Leg has no state.
func (p *p2p) Leg(*Request) Leg { return p }

// Begin fetches what a prefill has kept. An incomplete remote_prefiller is none, and
// what comes too late is refused at once, so that nothing wrong is read.
func (p *p2p) Begin(r *Request) *pydantic.Error {
	if _, produces := ParseP2P(r.KV, "remote_decoder"); produces {
		return nil
	}
	from, present := ParseP2P(r.KV, "remote_prefiller")
	if from.ID == "" || from.Host == "" || from.Port == 0 {
		if present {
			p.Count.BadParam(r.ID, "remote_prefiller is incomplete")
		}
		if p.Role != RolePrefill {
			p.countLocal(r)
		}
		return nil
	}
	c := transfer.Claim{RequestID: from.ID, Prompt: promptHash(r.Prompts[0])}
	addr := net.JoinHostPort(from.Host, strconv.Itoa(from.Port))
	if err := transfer.Ask(r.HTTP.Context(), addr, transfer.Question{Op: "take", Claim: c}); err != nil {
		p.refuse(r, err)
		return nil
	}
	p.loaded(r)
	return nil
}

// End keeps the blocks of a prefill under its kv_request_id, however it ended.
func (p *p2p) End(r *Request, _ string, answered bool) {
	to, _ := ParseP2P(r.KV, "remote_decoder")
	if !answered || to.ID == "" || r.NoKV {
		return
	}
	ledger := p.of(r)
	if ledger.Knows(to.ID) {
		p.reused(r, to.ID, "a prefill has had it")
		return
	}
	ledger.Put(to.ID, transfer.Offer{Prompt: promptHash(r.Prompts[0])}, time.Now())
	p.Count.TransfersMade.Add(1)
}

func (p *p2p) Inspect(r *Request) string {
	if _, present := ParseP2P(r.KV, "remote_decoder"); p.Role == RolePrefill && !present {
		return "kv_transfer_params has no remote_decoder"
	}
	return ""
}

// Form is what kv_transfer_params asks for.
type Form int

// The forms.
const (
	Absent  Form = iota
	Produce      // the six-field form of a prefill
	Load         // a KV cache to load
	Bad          // anything else: vLLM warns and computes the prompt itself
	Fatal        // something is missing that the engine does not ask about: a KeyError ends it
)

// NIXLParams is a parsed kv_transfer_params.
type NIXLParams struct {
	Form  Form
	Why   string // of Bad
	Host  string
	Port  int
	Claim transfer.Claim
}

// ParseNIXL reads the field as the NIXL connector does in one of its modes, and vllm-ascend's. The prefill
// form is held to its convention, six members of which four are null.
func ParseNIXL(raw []byte, mode Mode) NIXLParams {
	members, err := membersOf(raw)
	if err != nil {
		return NIXLParams{Form: Bad, Why: err.Error()}
	}
	if len(members) == 0 {
		return NIXLParams{} // an empty object is falsy in vLLM
	}
	produce, load := string(members["do_remote_decode"]), string(members["do_remote_prefill"])
	switch {
	case !isBool(produce) || !isBool(load):
		return NIXLParams{Form: Bad, Why: "do_remote_decode and do_remote_prefill must both be booleans"}
	case produce == "true" && load == "true":
		return NIXLParams{Form: Bad, Why: "do_remote_decode and do_remote_prefill are both true"}
	case produce == "true":
		return parseProduce(members)
	case load == "true":
		return parseLoad(members, mode)
	}
	return NIXLParams{Form: Bad, Why: "neither do_remote_decode nor do_remote_prefill is true"}
}

func isBool(s string) bool { return s == "true" || s == "false" }

func parseProduce(members map[string]json.RawMessage) NIXLParams {
	for _, key := range []string{"remote_engine_id", "remote_block_ids", "remote_host", "remote_port"} {
		if string(members[key]) != "null" {
			return NIXLParams{Form: Bad, Why: "the prefill form has " + key + " null"}
		}
	}
	if len(members) != 6 {
		return NIXLParams{Form: Bad, Why: fmt.Sprintf("the prefill form has 6 members, not %d", len(members))}
	}
	return NIXLParams{Form: Produce}
}

func parseLoad(members map[string]json.RawMessage, mode Mode) NIXLParams {
	k := NIXLParams{Form: Load}
	bad := func(format string, args ...any) NIXLParams {
		return NIXLParams{Form: Bad, Why: fmt.Sprintf(format, args...)}
	}
	if mode == NIXLPush {
		for _, key := range []string{"remote_engine_id", "remote_host", "remote_port", "tp_size"} {
			if members[key] == nil {
				return NIXLParams{Form: Fatal, Why: "KeyError: '" + key + "'"}
			}
		}
	}
	for key, into := range map[string]*string{
		"remote_engine_id": &k.Claim.EngineID, "remote_request_id": &k.Claim.RequestID, "remote_host": &k.Host,
	} {
		if json.Unmarshal(members[key], into) != nil || *into == "" {
			return bad("%s must be a string", key)
		}
	}
	if json.Unmarshal(members["remote_port"], &k.Port) != nil || k.Port < 1 || k.Port > 65535 {
		return bad("remote_port must be a port number")
	}
	var blocks []json.RawMessage
	if mode != NIXLPush && (json.Unmarshal(members["remote_block_ids"], &blocks) != nil || blocks == nil) {
		return bad("remote_block_ids must be a list")
	}
	k.Claim.Token = string(members[tokenField])
	if string(members[extraField]) != extraValue {
		k.Claim.Token = "" // which fits no offer
	}
	return k
}

// AppendNIXL appends what the response of a prefill carries, with the newest fields, an unknown
// one, and an integer that no float64 can hold.
func AppendNIXL(dst []byte, mode Mode, engineID, requestID, host string, port, promptLen int, token string) []byte {
	blocks := make([]int, min((promptLen+15)/16, 64))
	first := rand.IntN(1 << 16)
	for i := range blocks {
		blocks[i] = first + i
	}
	dst = jsontext.Append(dst, `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[$,[]],"remote_engine_id":$,"remote_request_id":$,`+
		`"remote_host":$,"remote_port":$`, blocks, engineID, requestID, host, port)
	if mode == Ascend {
		dst = jsontext.Append(dst, `,"remote_pcp_size":1,"remote_dcp_size":1,"remote_ptp_size":1,"last_token_id":17,"remote_multi_nodes_meta_mapping":{},`+
			`"num_prompt_blocks":$,"remote_block_size":[16]`, (promptLen+15)/16)
	} else {
		how := "pull"
		if mode == NIXLPush {
			how = "push"
		}
		dst = jsontext.Append(dst, `,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":$,"remote_blocks_expiry_time":null,"transfer_mode":$`, promptLen, how)
	}
	return jsontext.Append(dst, `,"`+tokenField+`":$,"`+extraField+`":$}`, jsontext.Raw(token), jsontext.Raw(extraValue))
}

// P2PRole is what kv_transfer_params say of one role of the P2P tier.
type P2PRole struct {
	ID   string `json:"kv_request_id"`
	Host string `json:"remote_host"`
	Port int    `json:"remote_port"`
}

// ParseP2P reads the role of this name; present reports whether there is an object for it.
func ParseP2P(raw []byte, name string) (role P2PRole, present bool) {
	members, err := membersOf(raw)
	member := members[name]
	if err != nil || len(member) == 0 || member[0] != '{' {
		return role, false
	}
	if json.Unmarshal(member, &role) != nil {
		return P2PRole{}, true
	}
	return role, true
}
