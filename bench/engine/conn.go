package engine

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/bench/wire"
)

const (
	// maxBody bounds a request's body.
	maxBody = 64 << 20
	// readBuffer takes a request of 2 KiB with its head in one read.
	readBuffer = 4 << 10
)

// conn is one connection. Its goroutine reads requests and answers them; a
// paced answer is written by the pacer while that goroutine waits for the
// next request, or for the news that the reader has left.
type conn struct {
	e    *Engine
	nc   *wire.Conn
	r    *wire.Reader
	body []byte
	kv   []byte // the name of the right KV cache
	out  []byte

	// The last answers, kept because the next request has the same shape.
	whole    *answer.Whole
	wholeFor shape
	stream   *answer.Stream
	streamOf shape
	event    int // the next one to write, when they are not paced
	next     func() []byte

	paced paced
}

// shape is what an answer depends on besides the tag.
type shape struct {
	api            answer.API
	tokens, prompt int
	sum            uint32
	flag           bool // usage of a stream, hand-over of a whole answer
}

func newConn(e *Engine, tcp *net.TCPConn) (*conn, error) {
	nc, err := wire.NewConn(tcp)
	if err != nil {
		return nil, err
	}
	c := &conn{e: e, nc: nc, r: wire.NewReader(nc, readBuffer)}
	c.next = c.nextEvent
	c.paced.init(c)
	return c, nil
}

// serve answers requests until the connection ends.
func (c *conn) serve() {
	defer c.leave()
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
		api, completion := apiOf(h.Line)
		probe := ""
		if !completion {
			probe = string(h.Line)
		}
		if err := c.read(h); err != nil {
			return
		}
		// A client that did not wait for its last answer gets it now.
		if err := c.nc.Flush(); err != nil {
			return
		}
		if completion {
			err = c.complete(api)
		} else {
			c.side(probe)
		}
		if err != nil || h.Close {
			c.paced.await()
			return
		}
	}
}

// leave sends what is left to be sent, to a client that wants no more.
func (c *conn) leave() {
	_ = c.nc.Flush()
	if c.nc.SendFailed() {
		c.e.aborted()
	}
	c.paced.readerLeft()
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

// apiOf reports which API a request is of that begins with that line.
func apiOf(line []byte) (api answer.API, generates bool) {
	switch {
	case bytes.HasPrefix(line, []byte("POST /v1/c")): // completions or chat/completions
		return answer.Chat, true
	case bytes.HasPrefix(line, []byte("POST /v1/responses")):
		return answer.Responses, true
	case bytes.HasPrefix(line, []byte("POST /v1/messages")):
		return answer.Messages, true
	}
	return answer.Chat, false
}

// complete answers a request to generate, or begins to.
func (c *conn) complete(api answer.API) error {
	c.paced.await() // a client that did not wait for the end of its last answer
	e := c.e
	q, err := parse(c.body)
	if err != nil {
		e.violations.Add(1)
		c.fail(400, err.Error())
		return nil
	}
	q.api = api
	e.requests.Add(1)
	if q.kv != nil {
		if c.kv = answer.AppendKVName(c.kv[:0], q.tag, q.sum); !bytes.Equal(q.kv, c.kv) {
			e.violations.Add(1)
			c.fail(500, "this is the KV cache of another prompt")
			return nil
		}
		e.handovers.Add(1)
	}
	if q.prefill {
		e.prefills.Add(1)
	}
	if !q.stream {
		c.answerWhole(&q)
		return nil
	}
	s := shape{api, q.tokens, q.prompt, q.sum, q.usage}
	if c.stream == nil || c.streamOf != s {
		c.stream, c.streamOf = answer.NewStream(api, q.tokens, q.prompt, q.sum, q.usage), s
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
// it; only the head goes with the first, and the end with the last, which goes
// out with the wait for the next request.
func (c *conn) answerStream() error {
	c.event = 0
	if err := c.nc.WriteEach(c.next); err != nil {
		c.e.aborted()
		return err
	}
	c.out = append(append(c.out[:0], c.stream.Chunk(c.event)...), endOfChunks...)
	c.nc.Queue(c.out, nil)
	return nil
}

// nextEvent is what the next write sends: nothing when only the last event is left.
func (c *conn) nextEvent() []byte {
	i := c.event
	if i == c.stream.Events()-1 {
		return nil
	}
	c.event++
	p := c.stream.Chunk(i)
	if i == 0 {
		c.out = append(append(c.out[:0], streamHead...), p...)
		p = c.out
	}
	return p
}

func (c *conn) answerWhole(q *call) {
	s := shape{q.api, q.tokens, q.prompt, q.sum, q.prefill}
	if c.whole == nil || c.wholeFor != s {
		c.whole, c.wholeFor = answer.NewWhole(q.api, q.tokens, q.prompt, q.sum, q.prefill), s
	}
	c.whole.SetTag(q.tag)
	c.reply(200, "application/json", c.whole.Body)
}

// reply makes the answer, which goes out with the wait for the next request.
func (c *conn) reply(status int, contentType string, body []byte) {
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
	c.nc.Queue(c.out, nil)
}

func (c *conn) fail(status int, message string) {
	c.reply(status, "application/json", fmt.Appendf(nil, `{"error":{"message":%q,"type":"BadRequestError","param":null,"code":%d}}`, message, status))
}

// side answers what proxies and agents ask about an engine.
func (c *conn) side(line string) {
	c.paced.await()
	switch path := firstWord(line); path {
	case "GET /health":
		c.reply(200, "text/plain", nil)
	case "GET /v1/models":
		c.reply(200, "application/json", []byte(`{"object":"list","data":[{"id":"`+answer.Model+`","object":"model","created":1700000000,"owned_by":"vllm","root":"`+answer.Model+`","parent":null,"max_model_len":1048576}]}`))
	case "GET /version":
		c.reply(200, "application/json", []byte(`{"version":"0.24.0"}`))
	case "GET /metrics":
		c.reply(200, "text/plain; version=0.0.4", c.e.metrics())
	default:
		c.reply(404, "application/json", []byte(`{"detail":"Not Found"}`))
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
