package vllm

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// lists returns a handler that answers with n adapters, in vLLM's format.
func lists(n int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"object":"list","data":[{"id":"base","root":"/models/base","parent":null,"max_model_len":4096}`)
		for i := range n {
			_, _ = fmt.Fprintf(w, `,{"id":"adapter-%d","object":"model","created":1,"owned_by":"vllm","root":"/adapters/%d","parent":"base","max_model_len":null,"permission":[{"id":"modelperm-%s"}]}`, i, i, strings.Repeat("x", 300))
		}
		_, _ = fmt.Fprint(w, `],"more":{"a":[1,{"b":[]}]}}`)
	}
}

// A long list is read to the end, or to a bound; exceeding the bound is no failure of the engine.
func TestModels_LongLists(t *testing.T) {
	t.Parallel()
	c := New("")
	c.Timeout = time.Minute
	for _, n := range []int{0, 401, 2500, 30000} {
		f, err := c.Models(t.Context(), engine(t, map[string]http.HandlerFunc{"/v1/models": lists(n)}))
		if err != nil || len(f.Models) != n+1 || f.ModelsTruncated || f.MaxModelLen != 4096 || f.Models[n] != fmt.Sprintf("adapter-%d", n-1) && n > 0 || len(f.Roots) != n+1 {
			t.Errorf("%d adapters: %d models, truncated %v, %v", n, len(f.Models), f.ModelsTruncated, err)
		}
	}
	f, err := c.Models(t.Context(), engine(t, map[string]http.HandlerFunc{"/v1/models": lists(100000)}))
	assert.True(t, err == nil && f.ModelsTruncated && len(f.Models) >= 30000 && f.Models[0] == "base",
		"100000 adapters: %d models, truncated %v, %v", len(f.Models), f.ModelsTruncated, err)
	for body, want := range map[string]error{
		`{"data":[{"id":"a"},{"id":"b"},{"id":"a"}]}`: nil,
		`{"data":{"id":"a"}}`:                         ErrNotVLLM,
		`["a"]`:                                       ErrNotVLLM,
		`{"data":[{"id":7}]}`:                         ErrNotVLLM,
		`{"data":[{"id":"a"},]}`:                      ErrNotVLLM,
		``:                                            ErrNotVLLM,
		`{"data":null}`:                               ErrNoModels,
		`{"object":"list"}`:                           ErrNoModels,
	} {
		f, err := c.Models(t.Context(), engine(t, map[string]http.HandlerFunc{"/v1/models": says(200, body)}))
		assert.True(t, errors.Is(err, want) && (want != nil || strings.Join(f.Models, " ") == "a b"),
			"%s: %q, %v", body, f.Models, err)
	}
}
