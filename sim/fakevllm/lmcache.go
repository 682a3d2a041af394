package fakevllm

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/lmcache"
	"github.com/pdmesh/pdmesh/internal/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvparams"
	"github.com/pdmesh/pdmesh/sim/fakevllm/model"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
)

// A prefill with LMCache's PD backend writes its chunks into the buffer of a decode, see
// handover.Receiver, and then notifies the proxy.

// NoticePlan is what becomes of the notifications of an LMCache prefill. The zero value
// sends each once, before the answer.
type NoticePlan struct {
	After bool // the transfer runs after the HTTP answer
	// Listed is called when a rank's chunks are listed and not written yet.
	Listed func(rank int)
	// Times is how often a rank notifies, where it is not once.
	Times func(rank int) int
}

// SetNotices changes what becomes of the notifications from now on.
func (s *Server) SetNotices(p NoticePlan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice = p
}

// AllocPorts are those of an LMCache decode, one for each rank.
func (s *Server) AllocPorts() []int {
	r := s.current().receiver
	if r == nil {
		return nil
	}
	return r.Ports()
}

// Unread is how many prompts lie in the buffer of an LMCache decode.
func (s *Server) Unread() int {
	r := s.current().receiver
	if r == nil {
		return 0
	}
	return r.Unread()
}

func (s *Server) startLMCache(ctx context.Context, l *life) (err error) {
	if s.opt.Role != RolePrefill {
		s.mu.Lock()
		addrs := s.alloc
		s.mu.Unlock()
		if l.receiver, err = handover.StartReceiver(ctx, addrs); err != nil {
			return err
		}
	}
	if s.opt.Role == RoleDecode || s.opt.NotifyAddr == "" {
		return nil
	}
	for range s.opt.Ranks {
		p, err := zmq.NewSender(zmq.Push, "tcp://"+s.opt.NotifyAddr)
		if err != nil {
			return err
		}
		l.pushers = append(l.pushers, p)
	}
	return nil
}

func (l *life) endLMCache() {
	if l.receiver != nil {
		l.receiver.Close()
	}
	for _, p := range l.pushers {
		p.Close()
	}
}

// loadLMCache does what the connector does before the request runs. The error is that
// of an engine which has died.
func (x *exchange) loadLMCache(j *job) *pydantic.Error {
	l, s := x.life, x.life.server
	spec, tags, err := kvparams.ParseLMCache(j.KV)
	if err != nil {
		s.badKV.add(x.id + ": " + err.Error())
		l.count.badKV.Add(1)
		return pydantic.InternalError() // the scheduler finds no such key
	}
	j.spec, j.tags = spec, tags
	if spec != nil && s.opt.Role != RoleDecode && (len(spec.Init) < s.opt.Ranks || len(spec.Alloc) < s.opt.Ranks) {
		s.violation("%s engine, %s: disagg_spec names %d and %d ports for %d ranks", s.opt.Role, x.id, len(spec.Init), len(spec.Alloc), s.opt.Ranks)
		l.count.crashes.Add(1) // a worker finds no port for its rank, and dies
		s.Kill()
		return pydantic.InternalError()
	}
	if l.receiver == nil || spec != nil {
		return nil
	}
	for _, ids := range j.Prompts {
		switch found, filled := l.receiver.Take(j.chunkKey(ids)); {
		case !found:
			l.count.localPrefills.Add(1)
		default:
			l.count.loaded.Add(1)
			j.Cached += len(ids) - 1
			if !filled {
				j.WrongKV = true
				s.refusals.add(x.id + ": the chunks are read before they are written: the answer is wrong")
				l.count.wrongKV.Add(1)
			}
		}
	}
	return nil
}

func (j *job) chunkKey(ids []int) string {
	g := model.NewGenerator(ids, 0)
	return strconv.FormatUint(g.Hash(), 16) + j.tags
}

// sendChunks hands over a prompt that is computed.
func (x *exchange) sendChunks(j *job) {
	l, s := x.life, x.life.server
	if j.spec == nil || s.opt.Role == RoleDecode {
		return
	}
	s.mu.Lock()
	plan := s.notice
	s.mu.Unlock()
	key := j.chunkKey(j.Prompts[0])
	for rank := range s.opt.Ranks {
		work := func() {
			if err := l.sendRank(j.spec, rank, key, plan); err != nil {
				s.refusals.add(x.id + ": " + err.Error())
				l.count.refused.Add(1)
				return
			}
			l.count.made.Add(1)
		}
		if !plan.After {
			work()
			continue
		}
		over := x.r.Context().Done() // ends with the answer
		l.fetches.Go(func() {
			select {
			case <-over:
				work()
			case <-l.done:
			}
		})
	}
}

func (l *life) sendRank(spec *kvparams.LMCacheSpec, rank int, key string, plan NoticePlan) error {
	ctx, cancel := context.WithTimeout(context.Background(), handover.SideDeadline)
	defer cancel()
	addr := net.JoinHostPort(strings.Trim(spec.Host, "[]"), strconv.Itoa(spec.Alloc[rank]))
	if err := handover.Tell(ctx, addr, "ALLOC ="+url.QueryEscape(key)); err != nil {
		return err
	}
	if plan.Listed != nil {
		plan.Listed(rank)
	}
	ctx, cancel = context.WithTimeout(context.Background(), handover.SideDeadline)
	defer cancel()
	if err := handover.Tell(ctx, addr, "FILL ="+url.QueryEscape(key)); err != nil {
		return err
	}
	times := 1
	if plan.Times != nil {
		times = plan.Times(rank)
	}
	frame := lmcache.AppendNotification(spec.ID)
	for range times {
		if rank >= len(l.pushers) {
			return nil
		}
		if err := l.pushers[rank].Send(ctx, frame); err != nil {
			return fmt.Errorf("notify: %w", err)
		}
	}
	return nil
}
