// Package kvevents publishes the changes of an engine's KV cache, as vLLM does.
package kvevents

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/sim/fakevllm/kvcache"
	"github.com/pdmesh/pdmesh/sim/testkit/zmqpeer"
)

// Publisher publishes the blocks that are stored in and removed from the cache of one engine core.
type Publisher struct {
	conf   Config
	arrays bool // events are arrays, as up to vLLM 0.23
	topics bool // replays name the topic, as since 0.26
	pub    *zmqpeer.Publisher
	router *zmq.Listener // nil without replay
	size   int           // tokens of a block

	mu     sync.Mutex // guards everything below
	next   uint64
	buffer [][]byte // payloads of the last messages
}

// Start starts a publisher with the message format of the vLLM version with this minor
// number. It returns nil if conf disables events. As in vLLM, it binds if the endpoint has a
// wildcard, and connects otherwise. Port 0 also binds.
func Start(ctx context.Context, conf *Config, minor, blockSize int) (*Publisher, error) {
	if conf == nil || !conf.Enabled || conf.filled().Publisher != "zmq" {
		return nil, nil
	}
	e := &Publisher{conf: conf.filled(), arrays: minor < 24, topics: minor >= 26, size: blockSize}
	var err error
	if binds := strings.Contains(e.conf.Endpoint, "*") || strings.Contains(e.conf.Endpoint, "::") || strings.HasSuffix(e.conf.Endpoint, ":0"); binds {
		if e.pub, err = zmqpeer.Publish(ctx, e.conf.Endpoint, e.conf.HWM, nil); err == nil {
			e.conf.Endpoint = withPort(e.conf.Endpoint, e.pub.Addr())
		}
	} else {
		e.pub, err = zmqpeer.PublishTo(e.conf.Endpoint, e.conf.HWM)
	}
	if err != nil {
		return nil, fmt.Errorf("publish KV events: %w", err)
	}
	if e.conf.ReplayEndpoint != nil {
		if e.router, err = zmq.Listen(ctx, zmq.Router, *e.conf.ReplayEndpoint, zmq.Bounds{}, nil); err != nil {
			return nil, errors.Join(fmt.Errorf("replay KV events: %w", err), e.pub.Close())
		}
		at := withPort(*e.conf.ReplayEndpoint, e.router.Addr())
		e.conf.ReplayEndpoint = &at
	}
	return e, nil
}

// withPort returns an endpoint with the port that it was bound to.
func withPort(endpoint string, addr net.Addr) string {
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return endpoint
	}
	return endpoint[:strings.LastIndexByte(endpoint, ':')+1] + port
}

// Config returns the configuration with its defaults and the bound ports.
func (e *Publisher) Config() Config { return e.conf }

// Close closes the publisher, which ends Replay.
func (e *Publisher) Close() {
	_ = e.pub.Close()
	if e.router != nil {
		_ = e.router.Close()
	}
}

// Publish sends a change as a batch of one event.
func (e *Publisher) Publish(c kvcache.Event) {
	b := msgp.AppendArrayHeader(nil, 3)
	b = msgp.AppendFloat64(b, float64(time.Now().UnixMicro())/1e6)
	b = e.appendEvent(msgp.AppendArrayHeader(b, 1), c)
	b = msgp.AppendInt(b, 0) // data_parallel_rank
	e.mu.Lock()
	defer e.mu.Unlock()
	seq := e.next
	e.next++
	e.buffer = append(e.buffer, b)
	if len(e.buffer) > e.conf.BufferSteps {
		e.buffer = e.buffer[1:]
	}
	e.pub.Send([]byte(e.conf.Topic), binary.BigEndian.AppendUint64(nil, seq), b)
}

// field is a field of an event.
type field struct {
	name  string
	value any
}

// appendEvent appends an event: its fields with their names, or as an array without them.
func (e *Publisher) appendEvent(b []byte, c kvcache.Event) []byte {
	fields := []field{{"type", "BlockRemoved"}, {"block_hashes", c.Hashes}, {"medium", "GPU"}}
	if c.Stored {
		var parent any // nil for none
		if c.Parent != 0 {
			parent = c.Parent
		}
		keys := make([]any, len(c.Hashes)) // by block: the salt for the first of a prompt, else nil
		if c.Salt != "" {
			keys[0] = []string{c.Salt}
		}
		fields = []field{
			{"type", "BlockStored"}, {"block_hashes", c.Hashes}, {"parent_block_hash", parent}, {"token_ids", c.Tokens}, {"block_size", e.size},
			{"lora_id", nil}, {"medium", "GPU"}, {"lora_name", nil}, {"extra_keys", keys},
		}
		if !e.arrays {
			fields = append(fields, field{"group_idx", 0}, field{"kv_cache_spec_kind", "full_attention"})
		}
	}
	n := uint32(len(fields)) //nolint:gosec // eleven at most
	if e.arrays {
		b = msgp.AppendArrayHeader(b, n)
	} else {
		b = msgp.AppendMapHeader(b, n)
	}
	for _, f := range fields {
		if !e.arrays {
			b = msgp.AppendString(b, f.name)
		}
		var err error
		if b, err = msgp.AppendIntf(b, f.value); err != nil {
			panic(err) // impossible for numbers and strings
		}
	}
	return b
}

// Replay answers requests for missed messages, until Close.
func (e *Publisher) Replay() {
	if e.router == nil {
		return
	}
	for {
		m, err := e.router.Receive(context.Background())
		if err != nil {
			return
		}
		if len(m.Frames) != 2 || len(m.Frames[1]) != 8 {
			continue // vLLM logs it and answers nothing
		}
		e.answer(m, binary.BigEndian.Uint64(m.Frames[1]))
	}
}

// endOfReplay is the sequence number of the message that ends a replay.
const endOfReplay = 1<<64 - 1

// answer sends the buffered messages from a sequence number on, and the end of the replay.
func (e *Publisher) answer(m zmq.Message, from uint64) {
	e.mu.Lock()
	first := e.next - uint64(len(e.buffer))
	list := e.buffer
	e.mu.Unlock()
	for i, payload := range list {
		if seq := first + uint64(i); seq >= from && e.reply(m, seq, []byte(e.conf.Topic), payload) != nil { //nolint:gosec // an index
			return // the peer disconnected
		}
	}
	_ = e.reply(m, endOfReplay, nil, nil) // the peer may have disconnected
}

func (e *Publisher) reply(m zmq.Message, seq uint64, topic, payload []byte) error {
	number := binary.BigEndian.AppendUint64(nil, seq)
	if e.topics {
		return m.Answer(nil, topic, number, payload)
	}
	return m.Answer(nil, number, payload)
}

// Config is vLLM's --kv-events-config.
type Config struct {
	Enabled        bool    `json:"enable_kv_cache_events"`
	Publisher      string  `json:"publisher"` // "zmq" or "null"; by default zmq if enabled
	Endpoint       string  `json:"endpoint"`  // default "tcp://*:5557"
	ReplayEndpoint *string `json:"replay_endpoint"`
	BufferSteps    int     `json:"buffer_steps"` // default 10000
	HWM            int     `json:"hwm"`          // default 100000
	MaxQueueSize   int     `json:"max_queue_size"`
	Topic          string  `json:"topic"`
}

// filled returns k with vLLM's defaults.
func (k Config) filled() Config {
	if k.Publisher == "" {
		k.Publisher = "null"
		if k.Enabled {
			k.Publisher = "zmq"
		}
	}
	k.Endpoint = cmp.Or(k.Endpoint, "tcp://*:5557")
	k.BufferSteps, k.HWM, k.MaxQueueSize = cmp.Or(k.BufferSteps, 10_000), cmp.Or(k.HWM, 100_000), cmp.Or(k.MaxQueueSize, 100_000)
	return k
}

// ParseConfig reads the JSON of --kv-events-config.
func ParseConfig(text string) (*Config, error) {
	k := new(Config)
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return k, d.Decode(k)
}
