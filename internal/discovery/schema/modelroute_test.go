package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestDecodeModelRoute(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{ // part of the error; "" for none
		`{"v":1,"targets":[{"model":"Qwen/Qwen2.5-72B"}]}`:                                                 "",
		`{"v":9,"targets":[{"model":"a","weight":0},{"model":"a","selector":"tier=x"}],"new":1}`:           "",
		`{"v":1,"targets":[{"model":"a","selector":"label:role in (x,y)"}],"sticky":"key","reason":"why"}`: "",
		``:                                    "JSON object",
		`[]`:                                  "JSON object",
		`{"v":1}`:                             "1 to 16 targets",
		`{"v":1,"targets":[{"model":""}]}`:    "1 to 256 bytes",
		`{"v":1,"targets":[{"model":"a b"}]}`: "spaces",
		`{"v":1,"targets":[{"model":"a","weight":0}]}`:                "all weights are 0",
		`{"v":1,"targets":[{"model":"a","weight":-1}]}`:               "weight -1",
		`{"v":1,"targets":[{"model":"a"},{"model":"a"}]}`:             "occurs twice",
		`{"v":1,"targets":[{"model":"a","selector":"role=prefill"}]}`: "only labels",
		`{"v":1,"targets":[{"model":"a","selector":"=="}]}`:           "selector",
		`{"v":1,"targets":[{"model":"a"}],"sticky":"user"}`:           "session, key or none",
	} {
		_, err := schema.DecodeModelRoute([]byte(value))
		var rejected *schema.RejectedError
		if want == "" && err != nil || want != "" && (!errors.As(err, &rejected) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", value, err, want)
		}
	}
}

// A route cannot have the name of a model that an engine here serves, unless it splits that model's requests.
func TestModelRoute_Conflict(t *testing.T) {
	t.Parallel()
	served := func(view instance.View) []*instance.Instance {
		return []*instance.Instance{{View: view, Record: instance.Record{Models: []string{"a", "chat"}}}}
	}
	for _, tc := range []struct {
		name, target string
		all          []*instance.Instance
		conflict     bool
	}{
		{"chat", "a", nil, false},
		{"chat", "a", served(""), true},
		{"chat", "a", served(instance.Orphan), true},
		{"chat", "a", served(instance.Elsewhere), false},
		{"chat", "chat", served(""), false},
		{"other", "a", served(""), false},
	} {
		r := schema.ModelRoute{Targets: []schema.ModelTarget{{Model: tc.target}}}
		assert.Equal(t, tc.conflict, (r.Conflict(tc.name, tc.all) != ""), tc)
	}
}
