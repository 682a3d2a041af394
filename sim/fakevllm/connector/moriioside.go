package connector

import (
	"errors"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
)

// partners are what a MoRI-IO producer knows of its transfers, besides their state.
type partners struct {
	mu     sync.Mutex // guards both maps
	asked  map[string]kvparams.MoRIIOParams
	tokens map[string]string
}

func (p *partners) put(id string, k kvparams.MoRIIOParams) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked == nil || len(p.asked) > 1<<16 {
		p.asked, p.tokens = make(map[string]kvparams.MoRIIOParams), make(map[string]string)
	}
	p.asked[id] = k
}

// handOut notes the token that was handed out for a transfer.
func (p *partners) handOut(id, token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens[id] = token
}

func (p *partners) of(id string) (k kvparams.MoRIIOParams, token string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[id], p.tokens[id]
}

var (
	errElsewhere = errors.New("timeout: prefill has written to another engine")
	errBlocks    = errors.New("the blocks are not those that were handed over")
)

// answer is one question on the side channel of a producer.
func (m *MoRIIO) answer(line string) string {
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
	if m.Mode == kvparams.MoRIIORead && !m.transfers.Holds(id, time.Now()) {
		// A one-sided read: what is in the blocks now is taken for the prompt's.
		return "OK 0"
	}
	prompt, err := m.transfers.Pull(id)
	if err != nil {
		return "ERR " + err.Error()
	}
	k, token := m.known.of(id)
	switch {
	case m.Mode == kvparams.MoRIIORead && token != words[5]:
		return "ERR " + errBlocks.Error()
	case m.Mode == kvparams.MoRIIOWrite && k.Peer != peer:
		timer := time.NewTimer(m.TransferTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-m.Done:
		}
		return "ERR " + errElsewhere.Error()
	case mine != 0 && mine != m.TPSize, m.Mode == kvparams.MoRIIOWrite && k.TP != 0 && k.TP != consumer:
		prompt = 0 // ranks are mapped wrongly, and nobody says so
	}
	return "OK " + strconv.FormatUint(prompt, 16)
}
