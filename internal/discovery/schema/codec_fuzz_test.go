package schema_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// rejected fails unless err has a printable reason why value is rejected.
func rejected(t *testing.T, value []byte, err error) {
	t.Helper()
	var r *schema.RejectedError
	if !errors.As(err, &r) || len(r.Reason) < 10 || len(r.Reason) > 1000 || instance.Printable(r.Reason, 0) != r.Reason {
		t.Fatalf("%q is rejected with %q (%T)", value, err, err)
	}
}

// FuzzDecodeRecord: no value of an instance's key causes a panic, and a rejected value has a printable
// reason. An accepted record remains the same when it is encoded and decoded again, field by field.
func FuzzDecodeRecord(f *testing.F) {
	for _, c := range members.BadValues() {
		if len(c.Value) < 1000 {
			f.Add("10.0.0.1:8100", []byte(c.Value))
		}
	}
	f.Add("10.0.0.1:8100", []byte(members.Ready))
	f.Add("host.example:1", []byte("http://HOST.example:1"))
	f.Add("[::1]:8100", []byte(`{"v":2,"id":"x","scheme":"https","models":["m","n"],"connector":"nixl","kv_role":"kv_both","engine_ids":{"0":"e"},"ports":{"side_channel":[5600]},
		"zmq_address":"tcp://a:1","transfer_mode":"pull","dp_size":1,"tp_size":2,"pp_size":3,"block_size":16,"max_model_len":4096,"version":"0.11","weight":0,"state":"starting","cause":"slow",
		"started_at":"2026-01-02T03:04:05.678+01:00","source":"agent","host_id":"h","agent":"a","labels":{"k":"\u2028"}}`))
	f.Fuzz(func(t *testing.T, address string, value []byte) {
		canonical, err := instance.ParseAddress(address)
		if err != nil {
			require.ErrorIs(t, err, instance.ErrAddress, address)
			require.Equal(t, err.Error(), instance.Printable(err.Error(), 0), address)
			return
		}
		if again, err := instance.ParseAddress(canonical); err != nil || again != canonical || strings.ContainsAny(canonical, "/ \n") {
			t.Fatalf("%q became %q, and that %q (%v)", address, canonical, again, err)
		}
		k := members.Prefill(canonical)
		rec, bare, err := schema.DecodeRecord(k, value)
		if err != nil {
			rejected(t, value, err)
			return
		}
		if rec.Role != k.Role || rec.State == "" || rec.Scheme == "" || rec.V < 1 || bare && rec.Address != k.Address {
			t.Fatalf("%q was read as %+v", value, rec)
		}
		if !bare {
			asSaid(t, value, rec)
		}
		out, err := schema.EncodeRecord(rec)
		if errors.Is(err, schema.ErrTooLarge) {
			return
		}
		require.NoError(t, err, "%q was read but cannot be written", value)
		rec.FitModels()
		again, bare, err := schema.DecodeRecord(k, out)
		require.True(t, err == nil && !bare, "%q does not read again: %v", out, err)
		diff := cmp.Diff(rec, again, cmpopts.EquateEmpty())
		require.Equal(t, "", diff, "%q, written as %q, is another record:\n%s", value, out, diff)
	})
}

// asSaid fails unless rec equals what encoding/json reads from value, with defaults for absent fields.
func asSaid(t *testing.T, value []byte, rec instance.Record) {
	t.Helper()
	var said instance.Record
	require.NoError(t, json.Unmarshal(bytes.TrimSpace(value), &said), "%q is taken; encoding/json says", value)
	if said.V == 0 {
		said.V = instance.RecordVersion
	}
	if said.Scheme == "" {
		said.Scheme = "http"
	}
	if said.State == "" {
		said.State = instance.Ready
	}
	said.Role, said.Address = rec.Role, rec.Address
	diff := cmp.Diff(said, rec)
	require.Equal(t, "", diff, "%q is read as another record:\n%s", value, diff)
}

// FuzzDecodeIntent does the same for values that operators write: overrides and pending adds.
func FuzzDecodeIntent(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `drain`, `{"v":2,"state":"drain","reason":"r","by":"b"}`, `{"v":1,"state":"cordon","weight":3,"by":"x","more":1}`, `{"state":"gone"}`, `{"weight":-1}`, `{"state":1}`, "\xff", ` {"state":"removed"} `,
		`{"model":"m","connector":"nixl","since":"2026-01-02T03:04:05Z","record":{"models":["m"],"address":"10.0.0.1:8100"}}`, `{"record":{"state":"x"}}`, `{"record":null}`, `[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		k := members.Prefill("10.0.0.1:8100")
		o, err := schema.DecodeOverride(value)
		if err != nil {
			rejected(t, value, err)
		} else if out, err := schema.EncodeValue(o); err == nil {
			again, err := schema.DecodeOverride(out)
			if diff := cmp.Diff(o, again); err != nil || diff != "" {
				t.Fatalf("%q, written as %q, is another override: %v\n%s", value, out, err, diff)
			}
		} else if !errors.Is(err, schema.ErrTooLarge) {
			t.Fatalf("%q was read but cannot be written: %v", value, err)
		}
		p, err := schema.DecodePending(k, value)
		if err != nil {
			rejected(t, value, err)
		} else if out, err := schema.EncodeValue(p); err == nil {
			again, err := schema.DecodePending(k, out)
			if diff := cmp.Diff(p, again, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Fatalf("%q, written as %q, is another pending add: %v\n%s", value, out, err, diff)
			}
		} else if !errors.Is(err, schema.ErrTooLarge) {
			t.Fatalf("%q was read but cannot be written: %v", value, err)
		}
	})
}
