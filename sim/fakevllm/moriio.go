package fakevllm

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// MoRI-IO engines find each other by the ids of their requests or by
// kv_transfer_params, as vLLM 0.32 does (moriio_common.py). The side channel stands
// for ZMQ and RDMA, in both modes:
//
//	PULL =<transfer id> =<decode's address> <decode's TP size> <what it takes prefill's to be> <token>
//	OK <hash of the prompt that was computed> | ERR <reason>

// startMoRIIO does what the connector does before the request runs. The error is that
// of an engine which has died.
func (x *exchange) startMoRIIO(j *job) *pydantic.Error {
	l := x.life
	s := l.server
	rid := j.ID + "-0-" + model.Hex16(model.Mix(uint64(time.Now().UnixNano())))[:8] //nolint:gosec // any bits do
	k := kvparams.ParseMoRIIO(j.KV, rid, s.opt.Mode)
	if k.Load && s.opt.Role == RolePrefill || k.Produce && s.opt.Role == RoleDecode {
		s.violation("%s engine, %s: a leg for the other role", s.opt.Role, x.id)
	}
	if k.Fatal != "" {
		s.violation("%s engine, %s: %s", s.opt.Role, x.id, k.Fatal)
		l.count.crashes.Add(1)
		s.Kill()
		return pydantic.InternalError()
	}
	many := len(j.Prompts) > 1 || j.N > 1
	switch {
	case many && (k.Load || k.Produce):
		x.reused(k.TransferID, "several answers share it")
		if k.Load {
			j.fetching = make(chan handover.Fetched)
		}
	case k.Produce:
		j.mooncake.TransferID = k.TransferID
		if j.offers = l.transfers.Begin(k.TransferID); !j.offers {
			x.reused(k.TransferID, "a prefill has had it")
			break
		}
		l.moriio.put(k.TransferID, k)
	case k.Load && (s.opt.Mode == MoRIIOWrite || k.Blocks):
		x.fetchMoRIIO(j, k)
	case s.opt.Mode == MoRIIORead && s.opt.Role == RoleDecode:
		// It takes the prompt for loaded, whatever the request says.
		j.WrongKV = true
		s.refusals.add(x.id + ": a consumer in READ mode without a hand-over: the answer is wrong")
		l.count.wrongKV.Add(1)
	case s.opt.Role != RolePrefill:
		l.count.localPrefills.Add(int64(len(j.Prompts)))
	}
	return nil
}

func (x *exchange) fetchMoRIIO(j *job, k kvparams.MoRIIOParams) {
	l := x.life
	j.fetching = make(chan handover.Fetched, 1)
	host, port := l.advertised(l.cores[0])
	line := fmt.Sprintf("PULL =%s =%s %d %d %s", url.QueryEscape(k.TransferID),
		url.QueryEscape(net.JoinHostPort(host, strconv.Itoa(port))), l.server.opt.TPSize, k.TP, k.Token)
	l.fetches.Go(func() { j.fetching <- l.fetchFrom(k.Peer, line) })
}

// appendMoRIIO renders what a prefill's answer carries.
func (x *exchange) appendMoRIIO(dst []byte, transferID string, promptLen int) []byte {
	l := x.life
	host, port := l.advertised(l.cores[0])
	token := kvparams.NewToken()
	l.moriio.token(transferID, token)
	return kvparams.AppendMoRIIO(dst, host, port, l.server.opt.TPSize, promptLen, transferID, token)
}

// moriioTransfers is what a producer knows of its transfers, besides their state.
type moriioTransfers struct {
	mu     sync.Mutex // guards both maps
	asked  map[string]kvparams.MoRIIOParams
	tokens map[string]string
}

func (m *moriioTransfers) put(id string, k kvparams.MoRIIOParams) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked == nil || len(m.asked) > 1<<16 {
		m.asked, m.tokens = make(map[string]kvparams.MoRIIOParams), make(map[string]string)
	}
	m.asked[id] = k
}

func (m *moriioTransfers) token(id, token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens[id] = token
}

func (m *moriioTransfers) of(id string) (k kvparams.MoRIIOParams, token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked[id], m.tokens[id]
}

var (
	errElsewhere = errors.New("timeout: prefill has written to another engine")
	errBlocks    = errors.New("the blocks are not those that were handed over")
)

// answerMoRIIO is one question on the side channel of a producer.
func (l *life) answerMoRIIO(line string) string {
	words := strings.Fields(line)
	if len(words) != 6 || words[0] != "PULL" {
		return "ERR " + handover.ErrSideSyntax.Error()
	}
	id, errID := url.QueryUnescape(strings.TrimPrefix(words[1], "="))
	peer, errPeer := url.QueryUnescape(strings.TrimPrefix(words[2], "="))
	consumer, errTP := strconv.Atoi(words[3])
	mine, errMine := strconv.Atoi(words[4])
	if errors.Join(errID, errPeer, errTP, errMine) != nil {
		return "ERR " + handover.ErrSideSyntax.Error()
	}
	if l.server.opt.Mode == MoRIIORead && !l.transfers.Holds(id, time.Now()) {
		// A one-sided read: what stands in the blocks now is taken for the prompt's.
		return "OK 0"
	}
	prompt, err := l.transfers.Pull(id)
	if err != nil {
		return "ERR " + err.Error()
	}
	k, token := l.moriio.of(id)
	own := l.server.opt.TPSize
	switch {
	case l.server.opt.Mode == MoRIIORead && token != words[5]:
		return "ERR " + errBlocks.Error()
	case l.server.opt.Mode == MoRIIOWrite && k.Peer != peer:
		timer := time.NewTimer(l.server.opt.TransferTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.done:
		}
		return "ERR " + errElsewhere.Error()
	case mine != 0 && mine != own, l.server.opt.Mode == MoRIIOWrite && k.TP != 0 && k.TP != consumer:
		prompt = 0 // ranks are mapped wrongly, and nobody says so
	}
	return "OK " + strconv.FormatUint(prompt, 16)
}
