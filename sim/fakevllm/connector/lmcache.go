package connector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/transfer"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// Notification returns the notification of a request as LMCache's PD backend sends it: a msgpack map
// (PDMsgBase in pd_backend.py).
func Notification(id string) []byte {
	b := msgp.AppendMapHeader(nil, 2)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "ProxyNotif")
	return msgp.AppendString(msgp.AppendString(b, "req_id"), id)
}

// lmcache is LMCache's PD backend: a prefill writes its chunks into the buffer of a decode, see
// transfer.Receiver, and then notifies the proxy.
type lmcache struct {
	base
	receiver transfer.Receiver // without sides of a prefill
	pushers  []*zmqpeer.Sender // of a prefill, one for each rank
}

// Start brings up the buffer, and what notifies.
func (c *lmcache) Start(ctx context.Context) (err error) {
	if c.Role != RolePrefill {
		if err = c.receiver.Start(ctx, c.At.Alloc); err != nil {
			return err
		}
		c.At.Alloc = nil
		for _, s := range c.receiver.Sides() {
			c.At.Alloc = append(c.At.Alloc, s.Addr())
		}
	}
	if c.Role == RoleDecode || c.NotifyAddr == "" {
		return nil
	}
	for range c.Ranks {
		p, err := zmqpeer.NewSender(zmq.Push, "tcp://"+c.NotifyAddr)
		if err != nil {
			return err
		}
		c.pushers = append(c.pushers, p)
	}
	return nil
}

// Close ends them.
func (c *lmcache) Close() {
	c.receiver.Close()
	for _, p := range c.pushers {
		p.Close()
	}
}

// AllocPorts returns the alloc ports of a decode, one for each rank.
func (c *lmcache) AllocPorts() (ports []int) {
	for _, s := range c.receiver.Sides() {
		ports = append(ports, s.Port())
	}
	return ports
}

// Unread returns the number of prompts in the buffer of a decode.
func (c *lmcache) Unread() int { return c.receiver.Unread() }

// Leg knows what the request asked for.
func (c *lmcache) Leg(*Request) Leg { return &lmcacheLeg{c: c} }

type lmcacheLeg struct {
	quiet
	c    *lmcache
	spec *LMCacheSpec // of a prefill, nil if none
	tags string       // of the keys of the chunks
}

// Begin reads what the request asks for, and a decode's chunks.
func (l *lmcacheLeg) Begin(r *Request) *pydantic.Error {
	c := l.c
	spec, tags, err := ParseLMCache(r.KV)
	if err != nil {
		c.Count.BadParam(r.ID, err.Error())
		return pydantic.InternalError() // the scheduler finds no such key
	}
	l.spec, l.tags = spec, tags
	if spec != nil && c.Role != RoleDecode && (len(spec.Init) < c.Ranks || len(spec.Alloc) < c.Ranks) {
		c.violate(r, fmt.Sprintf("disagg_spec names %d and %d ports for %d ranks", len(spec.Init), len(spec.Alloc), c.Ranks))
		return c.crash() // a worker finds no port for its rank, and dies
	}
	if c.Role == RolePrefill || spec != nil {
		return nil
	}
	for _, ids := range r.Prompts {
		found, filled := c.receiver.Take(l.key(ids))
		if !found {
			c.Count.LocalPrefills.Add(1)
			continue
		}
		c.Count.TransfersLoaded.Add(1)
		r.Cached += len(ids) - 1
		if !filled {
			c.mislead(r, "the chunks are read before they are written")
		}
	}
	return nil
}

// key is that of a prompt's chunks.
func (l *lmcacheLeg) key(ids []int) string {
	return strconv.FormatUint(promptHash(ids), 16) + l.tags
}

// Prefilled hands over a prompt that is computed.
func (l *lmcacheLeg) Prefilled(r *Request) {
	c := l.c
	if l.spec == nil || c.Role == RoleDecode {
		return
	}
	plan := c.Controls.notices()
	id, key := r.ID, l.key(r.Prompts[0])
	for rank := range c.Ranks {
		work := func() {
			if err := c.send(l.spec, rank, key, plan); err != nil {
				c.Count.Refuse(id, err)
				return
			}
			c.Count.TransfersMade.Add(1)
		}
		if !plan.After {
			work()
			continue
		}
		over := r.HTTP.Context().Done() // ends with the answer
		c.Work.Go(func() {
			select {
			case <-over:
				work()
			case <-c.Done:
			}
		})
	}
}

// send writes one rank's chunks and notifies the proxy of them.
func (c *lmcache) send(spec *LMCacheSpec, rank int, key string, plan NoticePlan) error {
	ctx := context.Background()
	addr := net.JoinHostPort(strings.Trim(spec.Host, "[]"), strconv.Itoa(spec.Alloc[rank]))
	q := transfer.Question{Op: "alloc", Claim: transfer.Claim{RequestID: key}}
	if err := transfer.Ask(ctx, addr, q); err != nil {
		return err
	}
	if plan.Listed != nil {
		plan.Listed(rank)
	}
	q.Op = "fill"
	if err := transfer.Ask(ctx, addr, q); err != nil {
		return err
	}
	times := 1
	if plan.Times != nil {
		times = plan.Times(rank)
	}
	frame := Notification(spec.ID)
	for range times {
		if rank >= len(c.pushers) {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		if err := c.pushers[rank].Send(ctx, frame); err != nil {
			return fmt.Errorf("notify: %w", err)
		}
	}
	return nil
}

// Inspect is what a proxy owes to such an engine.
func (c *lmcache) Inspect(r *Request) string {
	spec, tags, err := ParseLMCache(r.KV)
	switch {
	case c.Role == RolePrefill && (err != nil || spec == nil || tags == "" || len(spec.Init) != c.Ranks || len(spec.Alloc) != c.Ranks):
		return notPrefill
	case c.Role == RoleDecode && (err != nil || spec != nil):
		return isPrefill
	}
	return ""
}

// LMCacheSpec is what a prefill leg says.
type LMCacheSpec struct {
	ID    string `json:"req_id"`
	Host  string `json:"receiver_host"`
	Init  []int  `json:"receiver_init_port"`
	Alloc []int  `json:"receiver_alloc_port"`
}

var errSpec = errors.New("disagg_spec is not whole")

// ParseLMCache reads kv_transfer_params: the spec, nil if there is none, and the tags.
func ParseLMCache(raw []byte) (spec *LMCacheSpec, tags string, err error) {
	members, err := membersOf(raw)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		switch {
		case name == "disagg_spec":
			spec = new(LMCacheSpec)
			if json.Unmarshal(members[name], spec) != nil || spec.ID == "" || spec.Host == "" {
				err = errSpec
			}
		case strings.HasPrefix(name, "lmcache.tag."):
			tags += "@" + name + "%" + string(members[name])
		}
	}
	return spec, tags, err
}
