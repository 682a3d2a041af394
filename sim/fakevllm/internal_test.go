package fakevllm

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdmesh/pdmesh/sim/fakevllm/handover"
)

// Whoever has seen a number finds as many remarks.
func TestRemarksAreThereWhenTheyAreCounted(t *testing.T) {
	t.Parallel()
	s := &Server{}
	const times = 5000
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range times {
			s.noteAbort(strconv.Itoa(i))
			s.violation("%d", i)
		}
	})
	for counted := int64(0); counted < times; {
		counted = s.count.aborted.Load()
		if n := int64(len(s.Aborted())); n < counted {
			t.Fatalf("%d aborts are counted, and %d are there", counted, n)
		}
		if v := s.count.violations.Load(); int64(len(s.Violations())) < v {
			t.Fatalf("%d violations are counted, and not all are there", v)
		}
	}
	writing.Wait()
}

func TestHandoverIsJSON(t *testing.T) {
	t.Parallel()
	for range 100 {
		token := newToken()
		b := appendHandover(nil, NIXL, `e"1`, "chatcmpl-R\\", "::1", 5600, rand.IntN(5000), token)
		if !json.Valid(b) {
			t.Fatalf("%s", b)
		}
		k := parseKV(b, NIXL)
		if k.form != kvLoad || k.claim.Token != token || k.claim.EngineID != `e"1` || k.host != "::1" || k.port != 5600 {
			t.Fatalf("%s is read as %+v", b, k)
		}
		var f float64
		if err := json.Unmarshal([]byte(token), &f); err != nil {
			t.Fatal(err)
		}
		if again, _ := json.Marshal(f); string(again) == token {
			t.Fatalf("the token %s survives a float64", token)
		}
	}
}

func TestParseKV(t *testing.T) {
	t.Parallel()
	const produce = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	load := string(appendHandover(nil, NIXL, "e", "r", "h", 1, 5, newToken()))
	for _, tt := range []struct {
		name, in string
		form     kvForm
	}{
		{"absent", "", kvAbsent},
		{"empty", "{}", kvAbsent},
		{"prefill form", produce, kvProduce},
		{"prefill form without a null", strings.Replace(produce, `,"remote_port":null`, "", 1), kvBad},
		{"prefill form with another key", strings.Replace(produce, `remote_port`, "remote_ip", 1), kvBad},
		{"prefill form with a value", strings.Replace(produce, `"remote_port":null`, `"remote_port":1`, 1), kvBad},
		{"prefill form with more", strings.Replace(produce, `{`, `{"x":null,`, 1), kvBad},
		{"both", strings.Replace(produce, `"do_remote_prefill":false`, `"do_remote_prefill":true`, 1), kvBad},
		{"neither", strings.Replace(produce, `"do_remote_decode":true`, `"do_remote_decode":false`, 1), kvBad},
		{"a boolean is a string", strings.Replace(produce, `"do_remote_decode":true`, `"do_remote_decode":"true"`, 1), kvBad},
		{"a boolean is missing", strings.Replace(produce, `"do_remote_prefill":false,`, ``, 1), kvBad},
		{"decode form", load, kvLoad},
		{"decode form with a field of a newer version", strings.Replace(load, `{`, `{"new":[1],`, 1), kvLoad},
		{"decode form without blocks", strings.Replace(load, `remote_block_ids`, "other", 1), kvBad},
		{"decode form with null blocks", `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":null,"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1}`, kvBad},
		{"decode form without request id", strings.Replace(load, `remote_request_id`, "other", 1), kvBad},
		{"decode form with port as text", strings.Replace(load, `"remote_port":1`, `"remote_port":"1"`, 1), kvBad},
		{"decode form with port 0", strings.Replace(load, `"remote_port":1`, `"remote_port":0`, 1), kvBad},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var raw []byte
			if tt.in != "" {
				raw = []byte(tt.in)
			}
			if got := parseKV(raw, NIXL); got.form != tt.form {
				t.Errorf("%s is form %d (%s), not %d", tt.in, got.form, got.why, tt.form)
			}
		})
	}
	spoiled := strings.Replace(load, "1.0", "1", 1)
	if got := parseKV([]byte(spoiled), NIXL); got.form != kvLoad || got.claim.Token != "" {
		t.Errorf("re-encoded fields are not noticed: %+v", got)
	}
}

// Blocks that were freed are not given away, whether anybody has looked meanwhile
// or not, and an id that is over is not used again.
func TestTransferAfterItsTime(t *testing.T) {
	t.Parallel()
	reused := 0
	tr := handover.NewTransfers(time.Millisecond, nil, func(string) { reused++ })
	if !tr.Begin("x") {
		t.Error("a new id is not taken")
	}
	tr.Finish("x", 1, time.Now().Add(-time.Hour))
	if prompt, err := tr.Pull("x"); !errors.Is(err, handover.ErrNoPrefill) {
		t.Errorf("got %d, %v", prompt, err)
	}
	if waiting, expired := tr.Counts(time.Now()); waiting != 0 || expired != 1 || reused != 0 {
		t.Errorf("%d wait, %d have expired, %d are reused", waiting, expired, reused)
	}
	if tr.Begin("x") {
		t.Error("an id that is over is taken again")
	}
	tr.Drop("y")
	if len(tr.Open) > 0 {
		t.Errorf("%d are kept", len(tr.Open))
	}
}
