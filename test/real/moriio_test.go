package real_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/agent/zmqregister"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/engine/zmq"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/openai"
	"github.com/pdmesh/pdmesh/internal/openai/jsonscan"
	openairequest "github.com/pdmesh/pdmesh/internal/openai/request"
)

// moriioLeg is a leg as moriio.py reads it.
type moriioLeg struct {
	ID     string          `json:"id"`
	Route  string          `json:"route"`
	Mode   string          `json:"mode"`
	Role   string          `json:"role"`
	Params json.RawMessage `json:"params"`
}

// moriioFound is the partner of a leg as vLLM's code derived it.
type moriioFound struct {
	Host       string `json:"host"`
	Handshake  int    `json:"handshake"`
	Notify     int    `json:"notify"`
	TransferID string `json:"transfer_id"`
	TPSize     int    `json:"tp_size"`
	DPSize     int    `json:"dp_size"`
	Engine     any    `json:"engine"`
	Blocks     any    `json:"blocks"`
}

const moriioHandover = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[3,4]],"remote_engine_id":"10.0.0.1:6301",` +
	`"remote_host":"10.0.0.1","remote_handshake_port":6301,"remote_notify_port":61005,"remote_dp_rank":0,"remote_dp_rank_override":true,` +
	`"remote_dp_size":1,"remote_dp_size_local":1,"tp_size":8,"transfer_id":"tx-00112233445566778899aabbccddeeff"}`

// TestMoRIIOParsing passes our legs to vLLM's own parser, which needs no GPU, and lets vLLM's heartbeat
// register with us.
func TestMoRIIOParsing(t *testing.T) {
	p := connector.Pair{
		Prefill: &instance.Instance{Key: instance.Key{Role: instance.Prefill, Address: "10.0.0.1:8100"},
			Record: instance.Record{ZMQAddress: "host:10.0.0.1,handshake:6301,notify:61005", TPSize: 8, DPSize: 1}},
		Decode: &instance.Instance{Key: instance.Key{Role: instance.Decode, Address: "[fd00::2]:8200"},
			Record: instance.Record{ZMQAddress: "host:fd00::2,handshake:6302,notify:61006", TPSize: 2, DPSize: 1}},
		ID: "client-01234567", Key: "00112233445566778899aabbccddeeff",
	}
	prefill := moriioFound{Host: "10.0.0.1", Handshake: 6301, Notify: 61005, TPSize: 8, DPSize: 1, TransferID: "tx-" + p.Key}
	decode := moriioFound{Host: "fd00::2", Handshake: 6302, Notify: 61006, TPSize: 2, DPSize: 1, TransferID: "tx-" + p.Key}
	var legs []moriioLeg
	var want []moriioFound
	for _, route := range []struct {
		name, body string
		kind       openai.Kind
	}{
		{"completions", `{"model":"m","prompt":"hi"}`, openai.Completion},
		{"chat", `{"model":"m","messages":[]}`, openai.Chat},
		{"responses", `{"model":"m","input":"hi"}`, openai.Responses},
	} {
		req, err := openairequest.Parse(route.kind, []byte(route.body))
		require.NoError(t, err)
		write, read := dialect(t, "moriio_write"), dialect(t, "moriio_read")
		h := connector.TransferParams{Params: []byte(moriioHandover)}
		for _, l := range []struct {
			leg        connector.Leg
			mode, role string
			want       moriioFound
		}{
			{write.Prefill(req, p), "WRITE", "P", decode},
			{write.Decode(req, p, connector.TransferParams{}), "WRITE", "D", prefill},
			{read.Decode(req, p, h), "READ", "D", prefill},
		} {
			params, err := jsonscan.TopLevel(l.leg.Body.Bytes(), "kv_transfer_params")
			require.NoError(t, err)
			legs = append(legs, moriioLeg{l.leg.ID, route.name, l.mode, l.role, params})
			if l.mode == "READ" {
				l.want.Engine, l.want.Blocks = "10.0.0.1:6301", []any{[]any{3.0, 4.0}}
			}
			want = append(want, l.want)
		}
	}

	router, err := zmq.Listen(t.Context(), zmq.Router, "tcp://127.0.0.1:0", zmq.Bounds{}, nil)
	require.NoError(t, err)
	defer func() { _ = router.Close() }()
	found, loaded := moriioAsk(t, legs, router.Addr().String())
	if len(found) != len(want) {
		t.Fatalf("%d legs were read of %d", len(found), len(want))
	}
	for i := range want {
		if a, b := text(t, found[i]), text(t, want[i]); a != b {
			t.Errorf("%+v: vLLM parses %s, want %s", legs[i], a, b)
		}
	}
	if loaded != 9 {
		t.Errorf("a consumer in READ mode without transfer params treats %v of 10 tokens as loaded: docs/connectors/moriio.md says 9", loaded)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := router.Receive(ctx)
	require.NoError(t, err)
	ping, err := zmqregister.ParsePing(m.Frames[0])
	if err != nil || ping.Key != (instance.Key{Role: instance.Prefill, Address: "127.0.0.1:8100"}) || ping.TPSize != 8 || ping.Mode != "WRITE" ||
		ping.ZMQ.String() != "host:127.0.0.1,handshake:6301,notify:61005" {
		t.Errorf("vLLM's heartbeat is %+v, %v", ping, err)
	}
}

func dialect(t *testing.T, name string) connector.Dialect {
	t.Helper()
	d, err := connector.New(name)
	require.NoError(t, err)
	return d
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

// moriioAsk runs moriio.py, which keeps sending heartbeats until the test ends.
func moriioAsk(t *testing.T, legs []moriioLeg, endpoint string) (found []moriioFound, loaded float64) {
	t.Helper()
	cmd := exec.Command(filepath.Join(lab.dir, "venv", "bin", "python"), "lab/moriio.py")
	cmd.Env, cmd.Stderr = append(os.Environ(), lab.env...), os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("moriio.py: %v", err)
		}
	})
	if _, err := in.Write([]byte(text(t, map[string]any{"legs": legs, "endpoint": endpoint}) + "\n")); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	var resp struct {
		Found  []moriioFound `json:"found"`
		Loaded [2]any        `json:"loaded"`
	}
	if err := json.Unmarshal(line, &resp); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	loaded, _ = resp.Loaded[0].(float64)
	return resp.Found, loaded
}
