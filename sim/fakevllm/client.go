package fakevllm

import (
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/engine"
	"github.com/pdmesh/pdmesh/sim/fakevllm/jsontext"
	"github.com/pdmesh/pdmesh/sim/fakevllm/pydantic"
	"github.com/pdmesh/pdmesh/sim/fakevllm/request"
	"github.com/pdmesh/pdmesh/sim/tcpserver"
)

// client is the client side of a request: it writes the response and ends the connection.
type client struct {
	w        http.ResponseWriter
	flusher  flusher
	r        *http.Request
	api      request.API
	lifetime engine.Lifetime

	streaming bool // headers of an event stream are out
}

// flusher is what net/http's ResponseWriter offers besides.
type flusher interface{ FlushError() error }

// beginStream sends the headers of an event stream.
func (c *client) beginStream() {
	c.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	c.w.WriteHeader(http.StatusOK)
	c.streaming = true
	c.flush()
}

func (c *client) flush() {
	if c.flusher.FlushError() != nil {
		c.lifetime.Break()
	}
}

// write sends one or more complete events; false means that the client disconnected.
func (c *client) write(b []byte) bool {
	if _, err := c.w.Write(b); err != nil {
		c.lifetime.Break()
		return false
	}
	c.flush()
	return !c.lifetime.Broken()
}

// answer responds with a JSON body, or with an error.
func (c *client) answer(body []byte, err error) {
	if err != nil {
		c.refuse(err)
		return
	}
	pydantic.WriteJSON(c.w, http.StatusOK, body)
}

// refuse responds with an error. Errors of the framework about invalid requests have the same
// form on all routes.
func (c *client) refuse(err error) {
	e := pydantic.AsError(err)
	if c.api != request.Messages || e.Kind == "" || e.Kind == pydantic.KindInvalid {
		e.Write(c.w)
		return
	}
	pydantic.WriteJSON(c.w, e.Status, e.AppendMessages(nil))
}

// fail answers with an error, inside the stream once that has begun.
func (c *client) fail(e *pydantic.Error) {
	switch {
	case !c.streaming:
		c.refuse(e)
		return
	case c.api == request.Responses:
		// vLLM has no event for this error and aborts the stream.
		c.drop(false)
		return
	case c.api == request.Messages:
		e.Kind = "internal_error" // whatever it was
		c.write(append(e.AppendMessages(append([]byte(nil), "event: error\ndata: "...)), "\n\n"...))
		return
	}
	b := append(make([]byte, 0, 256), "data: "...)
	c.write(append(e.Append(b, true), "\n\ndata: [DONE]\n\n"...))
}

// finish ends a request of /v1/completions or /v1/chat/completions without another token.
// A stream of /v1/completions that has no token yet gets no chunk (vLLM 0.32,
// entrypoints/openai/completion/serving.py: "Chunked prefill case, don't return empty chunks").
func (c *client) finish(id, finish string, stop any, first bool) {
	if c.streaming && c.api == request.Completions && first {
		c.write([]byte("data: [DONE]\n\n"))
		return
	}
	object, said := "chat.completion", `"message":{"role":"assistant","content":""}`
	switch {
	case c.api != request.Chat:
		object, said = "text_completion", `"text":""`
	case c.streaming:
		object, said = "chat.completion.chunk", `"delta":{"content":""}`
	}
	b := jsontext.Append(nil, `{"id":$,"object":$,"choices":[{"index":0,`+said+`,"finish_reason":$,"stop_reason":$}]`, id, object, finish, stop)
	if c.streaming {
		c.write(slices.Concat([]byte("data: "), b, []byte("}\n\ndata: [DONE]\n\n")))
		return
	}
	c.answer(append(b, `,"usage":{"prompt_tokens":1,"total_tokens":1,"completion_tokens":0},"kv_transfer_params":null}`...), nil)
}

// drop ends the connection, by RST or by FIN.
func (c *client) drop(reset bool) {
	conn := c.hijack()
	if conn == nil {
		return
	}
	if reset {
		tcpserver.Reset(conn)
	}
	_ = conn.Close()
}

func (c *client) hijack() net.Conn {
	if c.streaming {
		c.flush()
	}
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return nil // the connection was closed
	}
	return conn
}

// garbage sends invalid HTTP or, inside a stream, invalid JSON.
func (c *client) garbage() {
	if c.streaming {
		c.write([]byte("data: {\"choices\": [\xff\xfe garbage\n\n"))
		return
	}
	if conn := c.hijack(); conn != nil {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte("\x16\x03\x01 this is no HTTP \xff\r\n\r\n"))
		_ = conn.Close()
	}
}

// watcher is the client of a stream in the background, which does not end with it.
type watcher struct{ http.ResponseWriter }

func (w watcher) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w watcher) Write(p []byte) (int, error) {
	_, _ = w.ResponseWriter.Write(p)
	return len(p), nil
}

func (w watcher) FlushError() error {
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	return nil
}

// nowhere is the client of a request in the background.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n *nowhere) WriteHeader(int)             {}
func (n *nowhere) FlushError() error           { return nil }
