// Package engine is a server for benchmarks that answers like vLLM, with one event and one
// write for each token. It uses much less CPU for a token than the simulator of the tests
// (sim/fakevllm): with 1,000 streams at 10 ms, engines and load generator share one core
// with 100,000 tokens/s, and the simulator saturates that core at about 15,000.
//
// The engine does not validate requests as vLLM does, but a decode request with the KV
// transfer params of another prompt is refused with 500 and counted.
package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pdmesh/pdmesh/bench/answer"
	"github.com/pdmesh/pdmesh/sim/tcpserver"
)

// Stats are counters since the start.
type Stats struct {
	Requests   uint64 // completions of either role
	Prefills   uint64 // of these: with a request for KV transfer params
	Transfers  uint64 // of these: with the correct KV transfer params
	Violations uint64 // refused requests
}

// Engine is a running engine. It is safe for concurrent use.
type Engine struct {
	itl     time.Duration
	started time.Time
	servers []*tcpserver.Server // one for each address
	quit    chan struct{}       // closed by Close

	requests, prefills, transfers, violations, active atomic.Int64
}

// Start listens on all addresses, which need not be different instances of the engine, and
// serves until Close. The tokens of a stream are itl apart; 0 sends them without a pause.
func Start(ctx context.Context, addresses []string, itl time.Duration) (*Engine, error) {
	e := &Engine{itl: itl, started: time.Now(), quit: make(chan struct{})}
	var lc net.ListenConfig
	for _, addr := range addresses {
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			e.Close()
			return nil, fmt.Errorf("start engine: %w", err)
		}
		e.servers = append(e.servers, tcpserver.Serve(ln, func(_ int, nc net.Conn) { newConn(e, nc).serve() }))
	}
	return e, nil
}

// Addresses returns the addresses in the order in which they were given to Start.
func (e *Engine) Addresses() []string {
	out := make([]string, len(e.servers))
	for i, s := range e.servers {
		out[i] = s.Addr().String()
	}
	return out
}

// Stats returns the counters.
func (e *Engine) Stats() Stats {
	s := Stats{Requests: uint64(e.requests.Load())} // read first, because complete counts it last
	s.Prefills, s.Transfers, s.Violations = uint64(e.prefills.Load()), uint64(e.transfers.Load()), uint64(e.violations.Load())
	return s
}

// Close closes all connections and blocks until the engine has ended.
func (e *Engine) Close() {
	close(e.quit)
	for _, s := range e.servers {
		s.Close()
	}
}

// conn is one connection of a client.
type conn struct {
	e     *Engine
	nc    net.Conn
	r     *bufio.Reader
	timer *time.Timer
	body  []byte
	kv    []byte
	out   []byte
	last  *answer.Response // of the last request, whose shape the next one probably has
}

func newConn(e *Engine, nc net.Conn) *conn {
	return &conn{e: e, nc: nc, r: bufio.NewReader(nc), timer: time.NewTimer(time.Hour)}
}

// serve answers requests until the connection ends.
func (c *conn) serve() {
	defer c.timer.Stop()
	for {
		req, err := http.ReadRequest(c.r)
		if err != nil {
			return
		}
		if err := c.read(req); err != nil {
			return
		}
		if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/completions") {
			err = c.complete()
		} else {
			err = c.page(req.Method + " " + req.URL.Path)
		}
		if err != nil || req.Close {
			return
		}
	}
}

// read reads the body of a request into c.body.
func (c *conn) read(req *http.Request) (err error) {
	const limit = 64 << 20
	if n := req.ContentLength; n >= 0 && n <= limit {
		if int64(cap(c.body)) < n {
			c.body = make([]byte, n)
		}
		c.body = c.body[:n]
		_, err = io.ReadFull(req.Body, c.body)
		return err
	}
	c.body, err = io.ReadAll(io.LimitReader(req.Body, limit))
	return err
}

// complete answers a request for a completion.
func (c *conn) complete() error {
	q, err := parse(c.body)
	if err != nil {
		return c.refuse(http.StatusBadRequest, err.Error())
	}
	if q.kv != nil {
		if c.kv = answer.AppendKVName(c.kv[:0], q.tag, q.params.Sum); !bytes.HasPrefix(q.kv, c.kv) {
			return c.refuse(http.StatusInternalServerError, "KV cache of another prompt")
		}
		c.e.transfers.Add(1)
	}
	if q.params.Prefill {
		c.e.prefills.Add(1)
	}
	c.e.requests.Add(1)
	c.e.active.Add(1)
	defer c.e.active.Add(-1)
	if c.last == nil || c.last.Params() != q.params {
		c.last = answer.New(q.params)
	}
	c.last.SetTag(q.tag)
	if !q.params.Stream {
		return c.reply(http.StatusOK, "application/json", c.last.Part(0))
	}
	return c.stream()
}

// stream writes each event on its own, as vLLM does, except that the head and the role go
// out with the first token, and the last token with everything that follows it.
func (c *conn) stream() error {
	c.out = append(c.out[:0], "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"...)
	due := time.Now()
	for i, n := 0, c.last.Len(); i < n; i++ {
		c.out = append(c.out, c.last.Chunk(i)...)
		if !c.last.IsToken(i+1) && i < n-1 || i == 0 {
			continue
		}
		if i == n-1 {
			c.out = append(c.out, "0\r\n\r\n"...)
		}
		if _, err := c.nc.Write(c.out); err != nil {
			return err
		}
		c.out = c.out[:0]
		if due = due.Add(c.e.itl); i < n-1 && !c.wait(&due) {
			return net.ErrClosed
		}
	}
	return nil
}

// wait blocks until due. If due has passed, it becomes the current time, so that the
// following tokens are not sent in a burst. It reports false if the engine was closed.
func (c *conn) wait(due *time.Time) bool {
	d := time.Until(*due)
	if d <= 0 {
		*due = due.Add(-d)
		return true
	}
	c.timer.Reset(d)
	select {
	case <-c.timer.C:
		return true
	case <-c.e.quit:
		return false
	}
}

// reply writes a response with a length.
func (c *conn) reply(status int, contentType string, body []byte) error {
	b := strconv.AppendInt(append(c.out[:0], "HTTP/1.1 "...), int64(status), 10)
	b = append(append(append(b, ' '), http.StatusText(status)...), "\r\nserver: uvicorn\r\ncontent-type: "...)
	b = append(append(b, contentType...), "\r\ncontent-length: "...)
	b = append(strconv.AppendInt(b, int64(len(body)), 10), "\r\n\r\n"...)
	c.out = append(b, body...)
	_, err := c.nc.Write(c.out)
	return err
}

// refuse answers and counts a violation.
func (c *conn) refuse(status int, message string) error {
	c.e.violations.Add(1)
	return c.reply(status, "application/json", fmt.Appendf(nil, `{"error":{"message":%q,"type":"BadRequestError","param":null,"code":%d}}`, message, status))
}

// page answers the requests of probes and agents.
func (c *conn) page(request string) error {
	const json = "application/json"
	switch request {
	case "GET /health":
		return c.reply(http.StatusOK, "text/plain", nil)
	case "GET /v1/models":
		return c.reply(http.StatusOK, json, []byte(`{"object":"list","data":[{"id":"`+answer.Model+`","object":"model","created":1700000000,"owned_by":"vllm","root":"`+answer.Model+`","parent":null,"max_model_len":1048576}]}`))
	case "GET /version":
		return c.reply(http.StatusOK, json, []byte(`{"version":"0.24.0"}`))
	case "GET /metrics":
		return c.reply(http.StatusOK, "text/plain; version=0.0.4", fmt.Appendf(nil, `# TYPE process_start_time_seconds gauge
process_start_time_seconds %.2f
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="%[2]s"} %[3]d
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="%[2]s"} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="%[2]s"} 0
`, float64(c.e.started.UnixMilli())/1000, answer.Model, c.e.active.Load()))
	}
	return c.reply(http.StatusNotFound, json, []byte(`{"detail":"Not Found"}`))
}

// errBody is wrapped by all errors about a request body.
var errBody = errors.New("unsupported request")

// call has the parameters of a request.
type call struct {
	tag    uint64
	params answer.Params
	kv     []byte // begins with the value of remote_request_id; nil without KV transfer params
}

// parse reads a request of the load generator, which a proxy may have changed. It searches
// for keys outside of the prompt instead of parsing JSON, because bodies have up to 64 KiB
// and the prompts of the generator contain no quotes. A request without a prompt of the
// generator, for example a probe, gets tag 0.
func parse(body []byte) (c call, err error) {
	if body = bytes.TrimSpace(body); len(body) < 2 || body[0] != '{' || body[len(body)-1] != '}' {
		return c, fmt.Errorf("%w: not a JSON object", errBody)
	}
	head, tail := body, body[len(body):]
	if i := bytes.Index(body, []byte(answer.Mark)); i >= 0 {
		prompt := body[i+len(answer.Mark):]
		n := bytes.IndexByte(prompt, '"')
		if n < answer.TagLen {
			return c, fmt.Errorf("%w: no tag", errBody)
		}
		head, prompt, tail = body[:i], prompt[:n], prompt[n:]
		if c.tag, err = strconv.ParseUint(string(prompt[:answer.TagLen]), 16, 64); err != nil {
			return c, fmt.Errorf("%w: tag: %w", errBody, err)
		}
		c.params.Prompt, c.params.Sum = n+1, answer.Sum(prompt[answer.TagLen:])
	}
	find := func(key string) []byte {
		if v := value(head, key); v != nil {
			return v
		}
		return value(tail, key)
	}
	is := func(key string) bool { return bytes.HasPrefix(find(key), []byte("true")) }
	const defaultTokens = 16
	c.params.Tokens = defaultTokens
	for _, key := range []string{`"max_tokens"`, `"max_completion_tokens"`} {
		if v := find(key); v != nil {
			end := bytes.IndexAny(v, ",} \n")
			if c.params.Tokens, err = strconv.Atoi(string(v[:max(end, 0)])); err != nil || c.params.Tokens < 1 {
				return c, fmt.Errorf("%w: %s is %.20q", errBody, key, v)
			}
			break
		}
	}
	c.params.Stream, c.params.Usage = is(`"stream"`), is(`"include_usage"`)
	c.params.Prefill = is(`"do_remote_decode"`)
	if is(`"do_remote_prefill"`) {
		if c.kv = find(`"remote_request_id"`); c.kv == nil {
			c.kv = []byte{}
		}
	}
	return c, nil
}

// value returns object from the value of a key on; nil if it does not have the key.
func value(object []byte, key string) []byte {
	for {
		i := bytes.Index(object, []byte(key))
		if i < 0 {
			return nil
		}
		object = bytes.TrimLeft(object[i+len(key):], " \n")
		if len(object) > 0 && object[0] == ':' {
			return bytes.TrimLeft(object[1:], " \n")
		}
	}
}
