package engine

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/wire"
)

// maxBody bounds a request's body.
const maxBody = 64 << 20

// conn is one connection. Its goroutine reads requests and answers them; a
// paced answer is written by the pacer while that goroutine waits for the
// next request, or for the news that the reader has left.
type conn struct {
	e    *Engine
	nc   net.Conn
	raw  syscall.RawConn // nil where there is none
	r    *wire.Reader
	body []byte
	out  []byte

	// The last answers, kept because the next request has the same shape.
	whole    *answer.Whole
	wholeFor shape
	stream   *answer.Stream
	streamOf shape

	paced paced
}

// shape is what an answer depends on besides the tag.
type shape struct {
	tokens, prompt int
	sum            uint32
	flag           bool // usage of a stream, hand-over of a whole answer
}

func newConn(e *Engine, nc net.Conn) *conn {
	c := &conn{e: e, nc: nc, r: wire.NewReader(nc, 2048)}
	if sc, ok := nc.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn() // without it the pacer writes the usual way
	}
	c.paced.init(c)
	return c
}

// serve answers requests until the connection ends.
func (c *conn) serve() {
	defer c.paced.readerLeft()
	for {
		h, err := c.r.Head()
		if err != nil {
			return
		}
		if h.Continue {
			if _, err := c.nc.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
				return
			}
		}
		completion := bytes.HasPrefix(h.Line, []byte("POST /v1/c")) // completions or chat/completions
		probe := ""
		if !completion {
			probe = string(h.Line)
		}
		if err := c.read(h); err != nil {
			return
		}
		if completion {
			err = c.complete()
		} else {
			err = c.side(probe)
		}
		if err != nil || h.Close {
			c.paced.await()
			return
		}
	}
}

// read takes the body into c.body, which is used again.
func (c *conn) read(h wire.Head) error {
	c.body = c.body[:0]
	if h.Length > maxBody {
		return fmt.Errorf("a body of %d bytes", h.Length)
	}
	if h.Length < 0 {
		return c.r.Body(h, func(p []byte) error {
			if c.body = append(c.body, p...); len(c.body) > maxBody {
				return fmt.Errorf("a body over %d bytes", maxBody)
			}
			return nil
		})
	}
	n := int(h.Length)
	if cap(c.body) < n {
		c.body = make([]byte, n)
	}
	c.body = c.body[:n]
	return c.r.Full(c.body)
}

// complete answers a completion, or begins to.
func (c *conn) complete() error {
	c.paced.await() // a client that did not wait for the end of its last answer
	e := c.e
	q, err := parse(c.body)
	if err != nil {
		e.violations.Add(1)
		return c.fail(400, err.Error())
	}
	e.requests.Add(1)
	if q.kv != nil {
		if want := fmt.Appendf(nil, `"%s%016x-%08x"`, answer.KVPrefix, q.tag, q.sum); !bytes.Equal(q.kv, want) {
			e.violations.Add(1)
			return c.fail(500, "this is the KV cache of another prompt")
		}
		e.handovers.Add(1)
	}
	if q.prefill {
		e.prefills.Add(1)
	}
	if !q.stream {
		return c.answerWhole(&q)
	}
	s := shape{q.tokens, q.prompt, q.sum, q.usage}
	if c.stream == nil || c.streamOf != s {
		c.stream, c.streamOf = answer.NewStream(q.tokens, q.prompt, q.sum, q.usage), s
	}
	c.stream.SetTag(q.tag)
	if itl := time.Duration(e.itl.Load()); itl > 0 {
		return c.paced.begin(itl)
	}
	return c.answerStream()
}

const streamHead = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"

// endOfChunks is what follows the last event.
const endOfChunks = "0\r\n\r\n"

// answerStream sends every event in a write of its own, as vLLM's server does
// it; only the head goes with the first, and the end with the last.
func (c *conn) answerStream() error {
	n := c.stream.Events()
	for i := range n {
		p := c.stream.Chunk(i)
		if i == 0 || i == n-1 {
			c.out = c.out[:0]
			if i == 0 {
				c.out = append(c.out, streamHead...)
			}
			c.out = append(c.out, p...)
			if i == n-1 {
				c.out = append(c.out, endOfChunks...)
			}
			p = c.out
		}
		if _, err := c.nc.Write(p); err != nil {
			c.e.aborted()
			return err
		}
	}
	return nil
}

func (c *conn) answerWhole(q *call) error {
	s := shape{q.tokens, q.prompt, q.sum, q.prefill}
	if c.whole == nil || c.wholeFor != s {
		c.whole, c.wholeFor = answer.NewWhole(q.tokens, q.prompt, q.sum, q.prefill), s
	}
	c.whole.SetTag(q.tag)
	return c.reply(200, "application/json", c.whole.Body)
}

func (c *conn) reply(status int, contentType string, body []byte) error {
	reason := "OK"
	if status != 200 {
		reason = "Refused"
	}
	b := append(c.out[:0], "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(append(b, ' '), reason...)
	b = append(b, "\r\nserver: uvicorn\r\ncontent-type: "...)
	b = append(b, contentType...)
	b = append(b, "\r\ncontent-length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	c.out = append(b, body...)
	if _, err := c.nc.Write(c.out); err != nil {
		c.e.aborted()
		return err
	}
	return nil
}

func (c *conn) fail(status int, message string) error {
	return c.reply(status, "application/json", fmt.Appendf(nil, `{"error":{"message":%q,"type":"BadRequestError","param":null,"code":%d}}`, message, status))
}

// side answers what proxies and agents ask about an engine.
func (c *conn) side(line string) error {
	c.paced.await()
	switch path := firstWord(line); path {
	case "GET /health":
		return c.reply(200, "text/plain", nil)
	case "GET /v1/models":
		return c.reply(200, "application/json", []byte(`{"object":"list","data":[{"id":"`+answer.Model+`","object":"model","created":1700000000,"owned_by":"vllm","root":"`+answer.Model+`","parent":null,"max_model_len":1048576}]}`))
	case "GET /version":
		return c.reply(200, "application/json", []byte(`{"version":"0.24.0"}`))
	case "GET /metrics":
		return c.reply(200, "text/plain; version=0.0.4", c.e.metrics())
	default:
		return c.reply(404, "application/json", []byte(`{"detail":"Not Found"}`))
	}
}

// firstWord is method and path of a request line.
func firstWord(line string) string {
	for i := len(line) - 1; i > 0; i-- {
		if line[i] == ' ' {
			return line[:i]
		}
	}
	return line
}

func (e *Engine) metrics() []byte {
	return fmt.Appendf(nil, `# TYPE process_start_time_seconds gauge
process_start_time_seconds %.2f
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="%[2]s"} %[3]d
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="%[2]s"} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="%[2]s"} 0
`, float64(e.started.UnixMilli())/1000, answer.Model, e.active.Load())
}
