package vllmargs_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/engine/vllmargs"
	"github.com/pdmesh/pdmesh/internal/instance"
)

// FuzzParseTransfer: the parsed --kv-transfer-config equals its
// text, and yields a known role and dialect, or a reason.
func FuzzParseTransfer(f *testing.F) {
	for _, s := range []string{
		`{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector"}]}}`,
		`{"kv_connector":"MooncakeConnector","kv_role":"kv_producer","kv_rank":0,"kv_parallel_size":2}`, `{"kv_role":"kv_consumer","engine_id":" x "}`,
		`{"kv_connector":"LMCacheConnectorV1","kv_role":"prefill"}`, `{"kv_connector":"\u001b[2J"}`, `{"kv_connector":1}`, `[]`, ` {} x`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := vllmargs.ParseTransfer(text)
		if err != nil {
			require.ErrorIs(t, err, vllmargs.ErrTransfer, text)
			require.Equal(t, err.Error(), instance.Printable(err.Error(), 0), text)
			return
		}
		var said struct {
			Connector *string `json:"kv_connector"`
			Role      *string `json:"kv_role"`
			Extra     struct {
				Connectors []any `json:"connectors"`
			} `json:"kv_connector_extra_config"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &said), "%q is taken, encoding/json says", text)
		is := func(got string, want *string) bool {
			return want == nil && got == "" || want != nil && got == strings.TrimSpace(*want)
		}
		if !is(got.Connector, said.Connector) || !is(got.KVRole, said.Role) || len(got.Connectors) != len(said.Extra.Connectors) {
			t.Fatalf("%q is read as %+v", text, got)
		}
		role, ok := got.Role()
		want := map[string]instance.Role{"kv_producer": instance.Prefill, "kv_consumer": instance.Decode}[got.KVRole]
		require.True(t, role == want && ok == (want != ""), "%q: role %q, %v", text, role, ok)
		dialect, err := got.Dialect()
		switch {
		case err != nil:
			if !errors.Is(err, vllmargs.ErrConnector) || dialect != "" || instance.Printable(err.Error(), 0) != err.Error() {
				t.Fatalf("%q: dialect %q, %q", text, dialect, err)
			}
		case dialect != "" && !slices.Contains(connector.Names(), dialect), dialect == "" && got.Connector != "":
			t.Fatalf("%q: the proxy has no dialect %q", text, dialect)
		}
		require.False(t, (got.Connector == "") != (got.Describe() == "") && len(got.Connectors) == 0,
			"%q is described as %q", text, got.Describe())
	})
}

// FuzzCommand parses any command line with one argument per line.
// The value of a flag for a key is never shown.
func FuzzCommand(f *testing.F) {
	for _, s := range []string{
		"vllm\nserve\nQwen/Qwen2.5\n--port\n8100\n--host\n10.0.0.7\n--api-key\nhunter2\n-tp\n2", "env\nA=b\nVLLM_API_KEY=hunter2\npython3\n-m\nvllm.entrypoints.openai.api_server\n--api_key=hunter2\nhunter2",
		"numactl\nvllm\nserve\nm\n--kv-transfer-config\n{\"kv_connector\":\"NixlConnector\"}\n--kv-transfer-config.kv_role\nkv_producer", "vllm\nserve\nm\n--kv-events-config.a+=b,c\n--kv-events-config.a+\nd\n--kv-events-config.topic\n{\"x\":1}", "vllm\nserve\n--headless", "x\n--port\n99999",
		"vllm\nserve\nm\n--data-parallel-size\n4\n-dpr\n2\n--served-model-name\na\nb\n--ssl-certfile\nx", "", "vllm\nserve\n--hf-token\nhunter2\n-dp=2\n-1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		argv := strings.Split(text, "\n")
		sent := slices.Clone(argv)
		c, err := vllmargs.ParseCommand(argv)
		switch {
		case err != nil:
			if !errors.Is(err, vllmargs.ErrCommand) && !errors.Is(err, vllmargs.ErrTransfer) && !errors.Is(err, vllmargs.ErrEvents) || instance.Printable(err.Error(), 0) != err.Error() {
				t.Fatalf("%q: %q", argv, err)
			}
		case c.Port < 0 || c.Port > 65535 || c.VLLM && c.Port == 0 || c.TensorParallel < 0 || c.PipelineParallel < 0 || c.DataParallel < 0:
			t.Fatalf("%q is read as %+v", argv, c)
		}
		masked := vllmargs.Masked(argv)
		require.Equal(t, sent, argv)
		require.Equal(t, len(argv), len(masked))
		for i, a := range argv {
			flag, value, joined := strings.Cut(a, "=")
			var secret string
			switch flag {
			case "--api-key", "--api_key", "--hf-token":
				if secret = value; !joined && i+1 < len(argv) && !strings.HasPrefix(argv[i+1], "-") {
					secret = argv[i+1]
				}
			}
			if len(secret) < 4 || strings.Contains("********", secret) {
				continue
			}
			at := i
			if !joined {
				at++
			}
			require.NotContains(t, strings.TrimPrefix(masked[at], flag+"="), instance.Printable(secret, 0),
				"%q is shown as %q", argv, masked)
		}
	})
}
