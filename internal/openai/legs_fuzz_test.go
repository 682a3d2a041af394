package openai_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/request"
	"github.com/pdmesh/pdmesh/internal/openai/splice"
)

// change is the edit of one field in a leg; the zero value keeps the field.
type change struct {
	value string // the new value; "" removes the field
	add   bool   // also if the client did not send the field
	// edits of the members of an object; of duplicates, only the last is edited
	inside map[string]change
}

// control reports whether a leg never gets a field of this name from a client.
func control(name string) bool {
	switch name {
	case "kv_transfer_params", "ec_transfer_params", "disagg_spec":
		return true
	}
	return strings.HasPrefix(name, "bootstrap_")
}

// container reports whether control fields may be in the object of this name.
func container(name string) bool {
	return name == "sampling_params" || name == "extra_args" || name == "vllm_xargs"
}

// prefillChanges are the changes of the prefill leg that are the same for all connectors
// (see prefillEdit in package connector).
func prefillChanges(kind openai.Kind) map[string]change {
	switch kind {
	case openai.Responses:
		return map[string]change{
			"max_output_tokens": {value: "1", add: true}, "ignore_eos": {value: "true", add: true}, "stream": {value: "false", add: true}, "store": {value: "false", add: true},
			"background": {}, "min_tokens": {}, "stop": {}, "stop_token_ids": {},
		}
	case openai.Messages:
		return map[string]change{"max_tokens": {value: "1", add: true}, "stream": {value: "false", add: true}, "stop_sequences": {}}
	case openai.Generate:
		return map[string]change{"stream": {value: "false", add: true}, "stream_options": {}, "sampling_params": {inside: map[string]change{
			"max_tokens": {value: "1", add: true}, "min_tokens": {value: "1", add: true}, "ignore_eos": {value: "true", add: true},
			"stop": {}, "stop_token_ids": {},
		}}}
	case openai.Completion, openai.Chat, openai.Other:
	}
	return map[string]change{
		"max_tokens": {value: "1", add: true}, "max_completion_tokens": {value: "1", add: false}, "min_tokens": {value: "1", add: true},
		"ignore_eos": {value: "true", add: true}, "stream": {value: "false", add: true},
		"min_completion_tokens": {}, "stream_options": {}, "stop": {}, "stop_token_ids": {},
	}
}

// legParams are the kv_transfer_params that a connector puts into its legs, "" for none, unless they come
// from prefill's answer.
type legParams struct{ Prefill, Decode json.RawMessage }

// paramsOf reads the legParams in the golden data of each connector.
func paramsOf(f *testing.F) map[string]legParams {
	f.Helper()
	all := map[string]legParams{}
	for _, name := range connector.Names() {
		b, err := os.ReadFile(filepath.Join("../connector/testdata", name, "params.json"))
		require.NoError(f, err, "say what connector %s puts into its legs", name)
		var p legParams
		require.NoError(f, json.Unmarshal(b, &p), name)
		all[name] = p
	}
	return all
}

// pair returns a pair that every connector supports.
func pair() connector.Pair {
	return connector.Pair{
		Prefill: &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "10.0.0.1:8100"}, Record: instance.Record{
			EngineIDs: map[string]string{"0": "e-1"}, Ports: map[string][]int{"bootstrap": {8998}, "p2p": {5710}},
			ZMQAddress: "host:10.0.0.1,handshake:6301,notify:61005", TPSize: 8}},
		Decode: &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: "10.0.0.2:8200"}, Record: instance.Record{
			ZMQAddress: "host:fd00::2,handshake:6302,notify:61006", TPSize: 2,
			ReceiverHost: "10.0.0.3", Ports: map[string][]int{"lmcache_init": {7300, 7301}, "lmcache_alloc": {7400, 7401}}}},
		ID: "id-1", Key: "k",
	}
}

// wanted is a member that a leg must have.
type wanted struct {
	text string
	// loose is true for a container that lost a member and may have lost spaces, too.
	loose bool
	// object that the leg has with the changes inside
	in     []byte
	inside map[string]change
}

func (w wanted) is(m rawMember) bool {
	return m.String() == w.text || w.loose && string(m.key)+":"+spaceless(m.value) == w.text
}

// wantMembers applies the changes to members that the standard library found. It returns the members that
// must follow the added fields of a leg.
func wantMembers(members []rawMember, changes map[string]change, nested bool) (out []wanted) {
	for i, m := range members {
		c, edited := changes[m.name]
		switch {
		case c.inside != nil && i == lastObject(members, m.name):
			out = append(out, wanted{in: m.value, inside: c.inside})
		case c.inside != nil:
			value, lost := stripped(m.value)
			out = append(out, wanted{text: string(m.key) + ":" + value, loose: lost})
		case control(m.name), !edited && !nested && m.name == "priority", edited && c.value == "":
		case edited:
			out = append(out, wanted{text: string(m.key) + ":" + c.value})
		case container(m.name):
			value, lost := stripped(m.value)
			out = append(out, wanted{text: string(m.key) + ":" + value, loose: lost})
		default:
			out = append(out, wanted{text: m.String()})
		}
	}
	return out
}

// lastObject returns the index of the last member of this name that is an object, or -1.
func lastObject(members []rawMember, name string) int {
	at := -1
	for i, m := range members {
		if m.name == name && m.value[0] == '{' {
			at = i
		}
	}
	return at
}

// stripped removes the control fields from a container. If it removes any, the result has no spaces between
// members.
func stripped(value []byte) (text string, lost bool) {
	members, ok := rawMembers(value)
	if !ok {
		return string(value), false
	}
	var kept []string
	for _, m := range members {
		text := m.String()
		if container(m.name) {
			inner, removed := stripped(m.value)
			lost = lost || removed
			text = string(m.key) + ":" + spaceless([]byte(inner))
		}
		if control(m.name) {
			lost = true
		} else {
			kept = append(kept, text)
		}
	}
	if !lost {
		return string(value), false
	}
	return "{" + strings.Join(kept, ",") + "}", true
}

// spaceless returns a container without spaces between members.
func spaceless(value []byte) string {
	members, ok := rawMembers(value)
	if !ok {
		return string(value)
	}
	parts := make([]string, len(members))
	for i, m := range members {
		if parts[i] = m.String(); container(m.name) {
			parts[i] = string(m.key) + ":" + spaceless(m.value)
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// checkLeg fails unless a leg is the body with exactly these changes: every other member has the client's
// bytes and position, and added fields are at the front.
func checkLeg(t *testing.T, what string, body []byte, leg splice.Body, changes map[string]change) {
	t.Helper()
	got := leg.Bytes()
	require.Equal(t, leg.Len(), int64(len(got)), "%s of %q has %d bytes and says", what, body, len(got))
	checkObject(t, what, body, got, changes, false)
}

// checkObject is checkLeg for an object, which may be inside the leg.
func checkObject(t *testing.T, what string, body, got []byte, changes map[string]change, nested bool) {
	t.Helper()
	members, ok := rawMembers(got)
	require.True(t, ok, "%s of %q is no object: %q", what, body, got)
	sent, _ := rawMembers(body)
	want := wantMembers(sent, changes, nested)
	var added []string
	for name, c := range changes {
		if c.add && (control(name) || lastOf(sent, name) == nil) {
			added = append(added, fmt.Sprintf("%q:%s", name, c.value))
		}
	}
	require.Len(t, members, len(added)+len(want),
		"%s of %q has members, want %d and %d: %q", what, body, len(added), len(want), got)
	front := make([]string, len(added))
	for i := range front {
		front[i] = members[i].String()
	}
	slices.Sort(front)
	slices.Sort(added)
	require.True(t, slices.Equal(added, front), "%s of %q begins with %q, want %q", what, body, front, added)
	for i, m := range members[len(added):] {
		if want[i].inside != nil {
			checkObject(t, what+", inside", want[i].in, m.value, want[i].inside, true)
			continue
		}
		require.True(t, want[i].is(m), "%s of %q\nhas  %q\nwant %q", what, body, m, want[i].text)
	}
	outside := func(b []byte) string {
		open, end := bytes.IndexByte(b, '{'), bytes.LastIndexByte(b, '}')
		return string(b[:open]) + "{}" + string(b[end+1:])
	}
	require.Equal(t, outside(body), outside(got), "%s of %q: the text around the object changed: %q", what, body, got)
}

// FuzzLegs builds the legs of every connector from any body and any answer of a prefill instance, and
// compares them with decode, edit, encode.
func FuzzLegs(f *testing.F) {
	answers := []string{`{"kv_transfer_params":{"remote_block_ids":[1,2],"remote_port":9007199254740993}}`, `{}`, `{"kv_transfer_params":null}`, `x`,
		` {"kv_transfer_params":{},"kv_transfer_params": [ 1 ] } `}
	for i, s := range requestSeeds {
		for kind := range openai.Generating() {
			f.Add([]byte(s), []byte(answers[i%len(answers)]), byte(kind))
		}
	}
	params := paramsOf(f)
	f.Fuzz(func(t *testing.T, body, answer []byte, which byte) {
		kinds := openai.Generating()
		kind := kinds[int(which)%len(kinds)]
		sent := bytes.Clone(body)
		r, err := request.Parse(kind, body)
		if err != nil {
			return
		}
		other, err := request.ParseOther(body)
		require.NoError(t, err, "%q is of kind %d and nothing else", body, kind)
		checkLeg(t, "the only leg", body, other.NewEdit().Body(), nil)
		for _, name := range connector.Names() {
			c, err := connector.New(name)
			require.NoError(t, err)
			changes := prefillChanges(kind)
			if params[name].Prefill != nil {
				changes["kv_transfer_params"] = change{value: string(params[name].Prefill), add: true}
			}
			checkLeg(t, name+" prefill", body, c.Prefill(r, pair()).Body, changes)

			h, err := c.TransferParams(answer)
			if err != nil {
				if json.Valid(answer) && len(bytes.TrimSpace(answer)) > 0 && bytes.TrimSpace(answer)[0] == '{' && !strings.Contains(err.Error(), "deeply") {
					t.Fatalf("%s refuses the answer %q: %v", name, answer, err)
				}
				h = connector.TransferParams{}
			}
			changes = map[string]change{}
			own := params[name].Decode != nil // the params come from the pair, not from prefill's answer
			if !h.Empty() && !own {
				said, _ := rawMembers(answer)
				require.True(t, bytes.Equal(h.Params, lastOf(said, "kv_transfer_params")),
					"%s hands over %q of %q", name, h.Params, answer)
				changes["kv_transfer_params"] = change{value: string(h.Params), add: true}
			}
			if r.MayBeStored() {
				changes["request_id"] = change{value: `"` + openai.ResponseID("k", pair().Decode.Address) + `"`, add: true}
			}
			if own && (!h.Empty() || c.Flow() != connector.Sequential) {
				changes["kv_transfer_params"] = change{value: string(params[name].Decode), add: true}
			}
			checkLeg(t, name+" decode", body, c.Decode(r, pair(), h).Body, changes)
		}
		require.True(t, bytes.Equal(body, sent), "the client's body was changed")
	})
}

// FuzzEdit applies any changes to any of the fields. Connectors make only certain changes.
func FuzzEdit(f *testing.F) {
	for i, s := range requestSeeds {
		f.Add([]byte(s), []byte{byte(i), byte(3 * i), 0x55, 0xaa, 0x1b, byte(7 * i)})
	}
	f.Fuzz(func(t *testing.T, body, how []byte) {
		r, err := request.ParseOther(body)
		if err != nil {
			return
		}
		e := r.NewEdit()
		changes := map[string]change{}
		for i, b := range how {
			field := request.FieldModel + request.Field(i)
			if field > request.FieldBootstrap {
				break
			}
			value := fmt.Sprintf(`{"%d":[9007199254740993]}`, i)
			switch b % 4 {
			case 1:
				e.Set(field, value)
				changes[field.String()] = change{value: value, add: true}
			case 2:
				if !control(field.String()) {
					e.Replace(field, value)
					changes[field.String()] = change{value: value, add: false}
				}
			case 3:
				e.Delete(field)
				changes[field.String()] = change{}
			}
		}
		checkLeg(t, "the edit", body, e.Body(), changes)
	})
}
