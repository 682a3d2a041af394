package openai_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/openai"
)

// legsOf gives the legs of one pair, copied.
func legsOf(t *testing.T, r *openai.Request) (out [2][]byte) {
	t.Helper()
	c, err := connector.New("nixl")
	if err != nil {
		t.Fatal(err)
	}
	h, err := c.Handover([]byte(`{"kv_transfer_params":{"remote_block_ids":[1,2,3]}}`))
	if err != nil {
		t.Fatal(err)
	}
	prefill, decode := c.Prefill(r), c.Decode(r, h)
	return [2][]byte{prefill.Bytes(), decode.Bytes()} // both made before either is looked at
}

// A Request that was used before reads and makes what a new one would.
func TestRequestIsUsedAgain(t *testing.T) {
	t.Parallel()
	bodies := append([]string{}, requestSeeds...)
	bodies = append(bodies,
		`{"model":"m","prompt":"`+strings.Repeat("long ", 4000)+`","max_tokens":9}`,
		`{"model":"m","messages":[],`+strings.Repeat(`"stop":"x",`, 100)+`"stream":true}`,
		`{"model":"m","prompt":"p","stream":true,"stream_options":{"include_usage":true},"min_tokens":3}`,
		`{"prompt":"p"}`,
	)
	var r openai.Request
	for range 2 {
		for _, body := range bodies {
			for _, kind := range []openai.Kind{openai.Completion, openai.Chat} {
				fresh, wantErr := openai.ParseRequest(kind, []byte(body))
				err := r.Parse(kind, []byte(body))
				if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
					t.Fatalf("%q: %v, want %v", body, err, wantErr)
				}
				if err != nil {
					if _, ok := errors.AsType[*openai.Error](err); !ok {
						t.Fatalf("%q: %T", body, err)
					}
					continue
				}
				if r.Model != fresh.Model || r.Stream != fresh.Stream || r.MaxTokens != fresh.MaxTokens || r.Bypass != fresh.Bypass ||
					r.IncludeUsage != fresh.IncludeUsage || r.ForcedTool != fresh.ForcedTool || r.Kind != kind {
					t.Fatalf("%q: %+v, want %+v", body, &r, fresh)
				}
				got, want := legsOf(t, &r), legsOf(t, fresh)
				for i := range got {
					if !bytes.Equal(got[i], want[i]) {
						t.Fatalf("%q: leg %d is %q, want %q", body, i, got[i], want[i])
					}
				}
			}
		}
	}
	if r.Reset(); r.Body != nil || r.Model != "" {
		t.Errorf("left: %+v", &r)
	}
}
