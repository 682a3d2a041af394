package forward_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/forward"
	"github.com/pdmesh/pdmesh/internal/forward/relay"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/transport/upstream"
)

const plainAnswer = `{"id":"c","object":"text_completion","choices":[{"index":0,"text":" a","finish_reason":"length"}],` +
	`"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10},` +
	`"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[1,2,3,4,5,6,7,8],"remote_engine_id":"e","remote_host":"h","remote_port":5600}}`

func token(i int) string {
	return fmt.Sprintf(`data: {"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" t%d","logprobs":null,"finish_reason":null,"stop_reason":null}]}`+"\n\n", i)
}

const (
	closing   = "data: [DONE]\n\n"
	brokenOff = `data: {"error":{"message":"failed","code":500}}` + "\n\n"
)

// lastEntry is a Recorder that keeps the last entry.
type lastEntry struct {
	noRecorder
	last *forward.Entry
}

func (e lastEntry) Done(entry *forward.Entry) { *e.last = *entry }

// askOnce sends one request through a handler, which may break the answer off.
func askOnce(tb testing.TB, h http.HandlerFunc, stream bool) {
	tb.Helper()
	sendOnce(tb, h, fmt.Sprintf(`{"model":"m","prompt":"x","max_tokens":64,"stream":%t}`, stream))
}

// sendOnce is askOnce with another body.
func sendOnce(tb testing.TB, h http.HandlerFunc, body string) {
	tb.Helper()
	defer func() {
		if r := recover(); r != nil && r != http.ErrAbortHandler {
			panic(r)
		}
	}()
	h(&sink{header: http.Header{}}, newRequest(tb.Context(), tb, http.MethodPost, completionsPath, strings.NewReader(body)))
}

// gapCounter counts the gaps of one stream.
type gapCounter struct {
	stuck, along int
	sum          float64 // seconds
}

func (c *gapCounter) Observe(seconds float64) {
	c.sum += seconds
	if seconds > 0 {
		c.stuck++
	} else {
		c.along++
	}
}

// The gaps of a stream exclude its first content and its closing event. An event that arrives together with
// another has a gap of zero.
func TestBetweenTokens(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		reads []string
		stuck int // gaps above zero
		along int // gaps of zero
	}{
		{"one by one", []string{token(0), token(1), token(2), token(3), closing}, 3, 0},
		{"in twos", []string{token(0), token(1) + token(2), token(3) + token(4) + closing}, 2, 2},
		{"cut anywhere", []string{token(0) + token(1)[:9], token(1)[9:], token(2) + closing[:4], closing[4:]}, 2, 0},
		{"all at once", []string{token(0) + token(1) + token(2) + closing}, 0, 0},
		{"one", []string{token(0), closing}, 0, 0},
		{"before an error", []string{token(0), token(1) + token(2) + brokenOff}, 1, 1},
	} {
		var gaps gapCounter
		serve := handlerOf(t, &canned{prefill: []byte(plainAnswer), stream: tc.reads}, func(o *forward.Options) {
			o.EventGaps = func(endpoint string) relay.Observer {
				assert.Equal(t, "/v1/completions", endpoint, "endpoint")
				return &gaps
			}
		})
		askOnce(t, serve, true)
		assert.True(t, gaps.stuck == tc.stuck && gaps.along == tc.along,
			"%s: %d waited and %d came along, want %d and %d", tc.name, gaps.stuck, gaps.along, tc.stuck, tc.along)
	}
}

// lossy answers decode legs with streams, one after another.
type lossy struct {
	canned
	legs [][]string
}

func (l *lossy) Do(ctx context.Context, r *upstream.Request) (*upstream.Response, error) {
	switch {
	case r.Path == "/detokenize":
		var ask struct{ Tokens []int }
		if err := json.Unmarshal(bytes.Join(r.Body, nil), &ask); err != nil {
			return nil, err
		}
		text := ""
		for _, id := range ask.Tokens {
			text += fmt.Sprintf(" t%d", id)
		}
		b := fmt.Appendf(nil, `{"prompt":%q}`, text)
		return &upstream.Response{Status: http.StatusOK, Header: jsonHeader, Length: int64(len(b)), Body: &whole{*bytes.NewReader(b)}}, nil
	case r.Instance.Role == instance.Decode:
		l.stream, l.legs = l.legs[0], l.legs[1:]
	}
	return l.canned.Do(ctx, r)
}

// A continued stream has a gap before each token that the client gets, also at the seam, and none for tokens
// that the client does not get.
func TestBetweenTokens_Continued(t *testing.T) {
	t.Parallel()
	withIDs := func(i int, prompt string) string {
		return strings.Replace(token(i), `"logprobs"`, fmt.Sprintf(`"prompt_token_ids":%s,"token_ids":[%d],"logprobs"`, prompt, i), 1)
	}
	for how, legs := range map[string][][]string{
		"replay": {
			{token(0), token(1), token(2)},
			{token(0) + token(1), token(2) + token(3), token(4)},
			{token(0), token(1) + token(2), token(3), token(4), token(5), closing},
		},
		"prompt": {
			{withIDs(0, "[90]"), withIDs(1, "null"), withIDs(2, "null")},
			{withIDs(3, "[90,0,1,2]"), withIDs(4, "null")},
			{": comment\n\n" + withIDs(5, "[90,0,1,2,3,4]"), closing},
		},
	} {
		var gaps gapCounter
		var e forward.Entry
		h := handlerOf(t, &lossy{canned: canned{prefill: []byte(plainAnswer)}, legs: legs}, func(o *forward.Options) {
			o.ContinueStreams, o.Recorder, o.EventGaps = 2, lastEntry{last: &e}, func(string) relay.Observer { return &gaps }
		}, "d:1", "d:2")
		sendOnce(t, h, `{"model":"m","prompt":"x","max_tokens":64,"stream":true,"temperature":0}`)
		assert.True(t, e.Outcome == relay.OutcomeOK && e.Continued == 2 && gaps.stuck == 5 && gaps.along == 0,
			"%s: %s, continued %d times, %d waited and %d came along", how, e.Outcome, e.Continued, gaps.stuck, gaps.along)
		if mean := gaps.sum / 5; e.Gap.Seconds() < mean-1e-6 || e.Gap.Seconds() > mean+1e-6 {
			t.Errorf("%s: a mean of %v, want %v s", how, e.Gap, mean)
		}
	}
}

// An engine's comments are not tokens, before and after the first content.
func TestEntry_TokensWithComments(t *testing.T) {
	t.Parallel()
	const comment = ": keep-alive\n\n"
	for _, reads := range [][]string{
		{comment + token(0), token(1), comment, token(2), comment, closing},
		{comment, token(0), comment + token(1) + comment + token(2), comment + closing},
	} {
		var e forward.Entry
		var gaps gapCounter
		askOnce(t, handlerOf(t, &canned{prefill: []byte(plainAnswer), stream: reads}, func(o *forward.Options) {
			o.Recorder, o.EventGaps = lastEntry{last: &e}, func(string) relay.Observer { return &gaps }
		}), true)
		assert.True(t, e.Output == 3 && gaps.stuck+gaps.along == 2, "%q: %d output tokens, %+v", reads, e.Output, gaps)
	}
}

// Usage that is reported right before an engine breaks off a stream counts.
func TestEntry_TokensBeforeAnError(t *testing.T) {
	t.Parallel()
	reported := strings.Replace(token(1), "}\n\n", `,"usage":{"prompt_tokens":5,"completion_tokens":9,"total_tokens":14}}`+"\n\n", 1)
	var e forward.Entry
	askOnce(t, handlerOf(t, &canned{prefill: []byte(plainAnswer), stream: []string{token(0), reported + brokenOff}}, func(o *forward.Options) {
		o.Recorder = lastEntry{last: &e}
	}), true)
	assert.True(t, e.Outcome == relay.OutcomeBroken && e.Output == 9, "%s with %d output tokens", e.Outcome, e.Output)
}

// The stages of a request add up to its total time.
func TestStages_SumToTotal(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		up := &canned{prefill: []byte(plainAnswer)}
		if stream {
			up.stream = []string{token(0), token(1), closing}
		}
		var e forward.Entry
		askOnce(t, handlerOf(t, up, func(o *forward.Options) { o.Recorder = lastEntry{last: &e} }), stream)
		s := e.Stages
		sum := s.Queue + s.Retry + s.Prefill + s.Handover + s.Decode
		assert.True(t, sum == e.Duration && sum != 0, "stages %v make %v of %v", s, sum, e.Duration)
		if s.Queue == 0 || s.Prefill == 0 || s.Decode == 0 || (s.Handover > 0) != stream || (e.FirstToken > 0) != stream || (e.Gap > 0) != stream || s.Retry != 0 {
			t.Errorf("stream %t: %+v, first token %v, then one each %v", stream, s, e.FirstToken, e.Gap)
		}
	}
}
