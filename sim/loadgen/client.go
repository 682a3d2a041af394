package loadgen

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"
)

// ErrWrong is wrapped by the errors about answers that arrived with status 200
// but are cut, reordered, or other than expected.
var ErrWrong = errors.New("wrong answer")

// maxEvent bounds one line of an event stream.
const maxEvent = 64 << 10

// Expected is what the one right answer looks like.
type Expected struct {
	Text             []byte
	PromptTokens     int
	CompletionTokens int
	FinishReason     string
}

// Result is how one request went.
type Result struct {
	// TTFT is the time to the first event with text, Total to the end of the
	// stream; both from when the request was about to be sent.
	TTFT, Total time.Duration
	Tokens      int // completion tokens of a right answer
	Cached      int // of its prompt tokens: those that usage reports as cached
	Status      int // of the answer; 0 when none came
	// Header is that of the answer; nil when none came.
	Header http.Header
	// Err is nil for a right answer and wraps ErrWrong for a wrong one; any
	// other error means that there was no answer, or one that said itself that
	// it is broken (an error event, a connection cut in the middle).
	Err error
}

// Client sends requests. It may be used by several goroutines.
type Client struct {
	http   *http.Client
	header http.Header
}

// NewClient makes a client that keeps up to conns idle connections per host.
// header is sent with every request.
func NewClient(conns int, header http.Header) *Client {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	return &Client{
		header: header,
		http: &http.Client{
			Transport: &http.Transport{
				DialContext:         dialer.DialContext,
				MaxIdleConnsPerHost: conns,
				IdleConnTimeout:     30 * time.Second,
				DisableCompression:  true,
				WriteBufferSize:     32 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Observer hears of an answer while it arrives; both may be nil.
type Observer struct {
	// Text gets the text of every event; the bytes are valid during the call.
	Text func([]byte)
	// ITL collects the pauses between two events with text.
	ITL *Histogram
}

// Stream posts a streaming request (completions or chat) with these headers, and checks the answer
// while it arrives. The body must ask for usage (stream_options.include_usage)
// and must not be changed afterwards.
func (c *Client) Stream(ctx context.Context, url string, header http.Header, body []byte, want Expected, o Observer) Result {
	start := time.Now()
	res, err := c.post(ctx, url, header, body)
	if err != nil {
		return Result{Total: time.Since(start), Err: err}
	}
	defer res.Body.Close()
	r := Result{Header: res.Header, Status: res.StatusCode}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 2048)) // best effort: the status says enough
		r.Err = fmt.Errorf("status %d: %q", res.StatusCode, text)
	} else if media, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || media != "text/event-stream" {
		r.Err = fmt.Errorf("%w: content type %q instead of text/event-stream", ErrWrong, res.Header.Get("Content-Type"))
	} else {
		s := stream{want: want, observer: o, start: start}
		r.Err = s.read(res.Body)
		r.TTFT, r.Tokens, r.Cached = s.ttft, s.output, s.cached
	}
	r.Total = time.Since(start)
	return r
}

func (c *Client) post(ctx context.Context, url string, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, c.header)
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", "application/json")
	return c.http.Do(req)
}

// read takes a stream apart into events.
func (s *stream) read(body io.Reader) error {
	br := bufio.NewReaderSize(body, maxEvent)
	open := false // a data line came, its blank line did not
	for {
		line, err := br.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("%w: an event is longer than %d bytes", ErrWrong, maxEvent)
		case errors.Is(err, io.EOF):
			return s.end(open || len(line) > 0)
		case err != nil:
			return fmt.Errorf("the stream broke after %d of %d bytes of text: %w", s.offset, len(s.want.Text), err)
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case len(line) == 0:
			open = false
		case bytes.HasPrefix(line, []byte("data:")):
			if open {
				return fmt.Errorf("%w: two data lines in one event", ErrWrong)
			}
			open = true
			if err := s.event(bytes.TrimPrefix(line[len("data:"):], []byte(" "))); err != nil {
				return err
			}
		}
	}
}

// stream checks one answer event by event.
type stream struct {
	want     Expected
	observer Observer
	start    time.Time

	ttft     time.Duration
	last     time.Time // of the last event with text
	offset   int       // into want.Text
	finished bool
	counted  bool
	done     bool
	output   int
	cached   int
}

// chunk has the checked fields of one event of a stream.
type chunk struct {
	Choices []struct {
		Text  string // of completions
		Delta struct{ Content string }
		// FinishReason is empty while null.
		FinishReason string `json:"finish_reason"`
	}
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error any
}

func (s *stream) event(data []byte) error {
	if s.done {
		return fmt.Errorf("%w: an event after [DONE]: %.200q", ErrWrong, data)
	}
	if string(data) == "[DONE]" {
		s.done = true
		return nil
	}
	var k chunk
	if err := json.Unmarshal(data, &k); err != nil {
		return fmt.Errorf("%w: event %.200q is not valid JSON of a chunk: %w", ErrWrong, data, err)
	}
	text, finish := "", ""
	for i := range k.Choices {
		text += k.Choices[i].Text + k.Choices[i].Delta.Content
		finish += k.Choices[i].FinishReason
	}
	if k.Error != nil {
		return fmt.Errorf("an error event after %d bytes of text: %.300q", s.offset, data)
	}
	if text != "" {
		now := time.Now()
		if s.last.IsZero() {
			s.ttft = now.Sub(s.start)
		} else if s.observer.ITL != nil {
			s.observer.ITL.Record(now.Sub(s.last))
		}
		s.last = now
		if s.finished {
			return fmt.Errorf("%w: text after the finish reason", ErrWrong)
		}
		if !bytes.HasPrefix(s.want.Text[s.offset:], []byte(text)) {
			return fmt.Errorf("%w: at byte %d of the text came %.60q instead of %.60q", ErrWrong, s.offset, text, s.want.Text[s.offset:])
		}
		s.offset += len(text)
		if s.observer.Text != nil {
			s.observer.Text([]byte(text))
		}
	}
	if finish != "" {
		if s.finished || finish != s.want.FinishReason {
			return fmt.Errorf("%w: finish reason %q instead of %q (or a second one)", ErrWrong, finish, s.want.FinishReason)
		}
		s.finished = true
	}
	if u := k.Usage; u != nil && len(k.Choices) == 0 {
		if s.counted {
			return fmt.Errorf("%w: usage twice", ErrWrong)
		}
		s.counted, s.output, s.cached = true, u.CompletionTokens, u.Details.Cached
		if u.PromptTokens != s.want.PromptTokens || u.CompletionTokens != s.want.CompletionTokens {
			return fmt.Errorf("%w: usage says %d + %d tokens instead of %d + %d", ErrWrong, u.PromptTokens, u.CompletionTokens, s.want.PromptTokens, s.want.CompletionTokens)
		}
	}
	return nil
}

// end checks that nothing is missing.
func (s *stream) end(inEvent bool) error {
	var missing []string
	if s.offset < len(s.want.Text) {
		missing = append(missing, fmt.Sprintf("%d of %d bytes of text", len(s.want.Text)-s.offset, len(s.want.Text)))
	}
	if !s.finished {
		missing = append(missing, "finish_reason")
	}
	if !s.counted {
		missing = append(missing, "usage")
	}
	if !s.done {
		missing = append(missing, "[DONE]")
	}
	if inEvent {
		missing = append(missing, "the end of the last event")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: the stream ended cleanly but lacks %s", ErrWrong, strings.Join(missing, ", "))
	}
	return nil
}
