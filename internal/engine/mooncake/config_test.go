package mooncake_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/mooncake"
	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestFormats(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text      string
		etcd            []string
		prefill, decode string
		labels          map[string]string
	}{
		{
			name: "v0.1",
			text: `{"local_url":"10.0.0.1:13003","remote_url":"10.0.0.2:13003","metadata_server":"10.0.0.2:2379","protocol":"rdma","device_name":"erdma_0"}`,
			etcd: []string{"10.0.0.2:2379"}, prefill: "10.0.0.1", decode: "10.0.0.2",
			labels: map[string]string{"mooncake_protocol": "rdma"},
		},
		{
			name: "v0.2 with a backend",
			text: `{"prefill_url":"10.0.0.1:13003","decode_url":"10.0.0.2:13003","metadata_server":"10.0.0.2:2379","metadata_backend":"etcd","protocol":"tcp","device_name":""}`,
			etcd: []string{"10.0.0.2:2379"}, prefill: "10.0.0.1", decode: "10.0.0.2",
			labels: map[string]string{"mooncake_protocol": "tcp"},
		},
		{
			name: "v0.2 without one",
			text: `{"prefill_url":"[fd00::1]:13003","decode_url":"[fd00::2]:13003","metadata_server":"[fd00::2]:2379"}`,
			etcd: []string{"[fd00::2]:2379"}, prefill: "fd00::1", decode: "fd00::2",
		},
		{
			name: "v0.3",
			text: `{"local_hostname":"10.0.0.1","metadata_server":"etcd://10.0.0.9:2379","protocol":"RDMA","device_name":"erdma_0,erdma_1","master_server_address":"10.0.0.9:50001"}`,
			etcd: []string{"10.0.0.9:2379"}, prefill: "10.0.0.1", decode: "10.0.0.1",
			labels: map[string]string{"mooncake_protocol": "rdma", "mooncake_host": "10.0.0.1", "mooncake_master": "10.0.0.9:50001"},
		},
		{
			name: "store with sizes as text or number",
			text: `{"metadata_server":"etcd://a:2379","master_server_address":"a:50063","global_segment_size":"3355443200","local_buffer_size":1073741824,"enable_ssd_offload":false}`,
			etcd: []string{"a:2379"}, labels: map[string]string{"mooncake_master": "a:50063"},
		},
		{name: "several members by comma", text: `{"metadata_server":"etcd://a:2379, b:2379,etcd://c:2379/,a:2379"}`, etcd: []string{"a:2379", "b:2379", "c:2379"}},
		{name: "several members by semicolon", text: `{"metadata_server":"a:2379;b:2379;"}`, etcd: []string{"a:2379", "b:2379"}},
		{name: "the scheme counts more than the backend", text: `{"metadata_server":"etcd://a:2379","metadata_backend":"redis"}`, etcd: []string{"a:2379"}},
		{name: "scheme in capitals", text: `{"metadata_server":"ETCD://a:2379"}`, etcd: []string{"a:2379"}},
		{name: "byte order mark, nulls and unknown fields", text: "\xef\xbb\xbf {\"metadata_server\":\"a:2379\",\"local_url\":null,\"x\":[1]}", etcd: []string{"a:2379"}},
		{name: "fields of several generations", text: `{"metadata_server":"a:2379","local_url":"h:1","local_hostname":"h"}`, etcd: []string{"a:2379"}, prefill: "h", decode: "h", labels: map[string]string{"mooncake_host": "h"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := mooncake.Parse([]byte(tc.text))
			require.NoError(t, err)
			etcd, err := c.Etcd()
			require.NoError(t, err)
			if tc.labels == nil {
				tc.labels = map[string]string{}
			}
			assert.Equal(t, "", cmp.Diff(tc.etcd, etcd)+cmp.Diff(tc.labels, c.Labels()))
			assert.Equal(t, tc.prefill, c.Host(instance.Prefill))
			assert.Equal(t, tc.decode, c.Host(instance.Decode))
		})
	}
}

func TestNotEtcd(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, text, says string }{
		{"handshake", `{"local_hostname":"h","metadata_server":"P2PHANDSHAKE"}`, "P2PHANDSHAKE the nodes ask each other"},
		{"handshake in small letters", `{"metadata_server":"p2phandshake"}`, "P2PHANDSHAKE"},
		{"http", `{"metadata_server":"http://h:8080/metadata"}`, "http://h:8080/metadata is Mooncake's own HTTP metadata server"},
		{"http by backend", `{"metadata_server":"h:8080","metadata_backend":"http"}`, "HTTP metadata server"},
		{"redis", `{"metadata_server":"redis://:topsecret@h:6379"}`, "redis://h:6379 is redis"},
		{"redis by backend with a password", `{"metadata_server":"u:topsecret@h:6379","metadata_backend":"redis"}`, "h:6379 is redis"},
		{"redis by backend", `{"metadata_server":"h:6379","metadata_backend":"Redis"}`, "is redis"},
		{"none", `{"master_server_address":"h:1"}`, "no metadata_server"},
		{"empty", `{"metadata_server":""}`, "no metadata_server"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := mooncake.Parse([]byte(tc.text))
			require.NoError(t, err)
			etcd, err := c.Etcd()
			if !errors.Is(err, mooncake.ErrNotEtcd) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "topsecret") {
				t.Errorf("%v, %v", etcd, err)
			}
		})
	}
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, text, says string }{
		{"nothing", "", "no JSON object"},
		{"a list", "[]", "no JSON object"},
		{"YAML", "metadata_server: a:2379", "no JSON object"},
		{"cut", "{\n \"metadata_server\": \"a:2379\",\n", "line 3: unexpected end"},
		{"trailing comma", "{\n \"protocol\": \"tcp\",\n}", "line 3: invalid character"},
		{"a number", "{\n\n\"metadata_server\": 2379}", "line 3: metadata_server must be a text in quotes, not a number"},
		{"no port", `{"metadata_server":"etcd://10.0.0.1"}`, "must be host:port"},
		{"wildcard", `{"metadata_server":"0.0.0.0:2379"}`, "wildcard"},
		{"no member", `{"metadata_server":"etcd://"}`, "names no etcd member"},
		{"a password", `{"metadata_server":"etcd://u:topsecret@a:2379"}`, "set it by --etcd-username"},
		{"two kinds", `{"metadata_server":"etcd://a:1,redis://b:1"}`, "etcd and redis together"},
		{"control characters", "{\"metadata_server\":\"a\\u001b[1m:1\"}", `u001b`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := mooncake.Parse([]byte(tc.text))
			if !errors.Is(err, mooncake.ErrFile) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\x1b") || strings.Contains(err.Error(), "topsecret") {
				t.Errorf("%+v, %v", c, err)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := write("mooncake.json", `{"metadata_server":"a:2379"}`)
	c, err := mooncake.Load(good)
	assert.True(t, err == nil && c.MetadataServer == "a:2379", "%+v, %v", c, err)
	for name, tc := range map[string]struct{ path, says string }{
		"missing":   {filepath.Join(dir, "no.json"), "no such file"},
		"directory": {dir, "is not a file"},
		"large":     {write("large", strings.Repeat(" ", 2<<20)), "more than"},
		"broken":    {write("broken", "{"), "broken: unusable mooncake.json"},
	} {
		_, err = mooncake.Load(tc.path)
		assert.True(t, errors.Is(err, mooncake.ErrFile) && strings.Contains(err.Error(), tc.says), "%s: %v", name, err)
	}
}

// FuzzParse: whatever the file, the result is etcd members in canonical form or the reason why
// there are none. No displayed part of the file contains a password or a control character.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"metadata_server":"etcd://a:2379;b:2379","protocol":"tcp"}`, `{"metadata_server":"P2PHANDSHAKE"}`, `{"metadata_server":"redis://user:hunter2@a:6379/0","metadata_backend":"redis"}`,
		"\xef\xbb\xbf{\"metadata_server\":\"http://u:hunter2@a/metadata\",\"local_hostname\":\"[::1]:1\"}", `{"metadata_server":"etcd://u:hunter2@a:2379"}`,
		`{"metadata_server":1}`, `{"metadata_server":"u:hunter2@a:1","metadata_backend":"redis"}`, `{"metadata_server":"a:2379;etcd://b:2379"}`, `{"local_url":"a:1","prefill_url":"b:1","master_server_address":"c:1"}`, `{`,
		`{"metadata_server":"etcd://u:hunter2@[::1]:2379, redis://x"}`, `{"metadata_server":"a:1","metadata_backend":"x\u001b[2J"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := mooncake.Parse(raw)
		if err != nil {
			shows(t, raw, err.Error())
			require.ErrorIs(t, err, mooncake.ErrFile, raw)
			return
		}
		members, err := c.Etcd()
		switch {
		case err != nil:
			require.True(t, errors.Is(err, mooncake.ErrNotEtcd) && len(members) == 0, "%q: %q, %v", raw, members, err)
			shows(t, raw, err.Error())
		case len(members) == 0 || c.Backend != "etcd":
			t.Fatalf("%q names no member and is no error; backend %q", raw, c.Backend)
		}
		for i, m := range members {
			if again, err := instance.ParseAddress(m); err != nil || again != m || slices.Contains(members[:i], m) {
				t.Fatalf("%q names %q", raw, members)
			}
		}
		for _, role := range instance.Roles() {
			if h := c.Host(role); strings.ContainsAny(h, "[]") && utf8.Valid(raw) && !strings.Contains(string(raw), h) {
				t.Fatalf("%q: host %q", raw, h)
			}
		}
		for name, value := range c.Labels() {
			shows(t, raw, name+value)
		}
	})
}

// shows fails unless text is printable and contains no password.
func shows(t *testing.T, raw []byte, text string) {
	t.Helper()
	require.True(t, text != "" && instance.Printable(text, 0) == text, "%q: %q is not fit to print", raw, text)
	require.False(t, strings.Contains(text, "hunter2") && strings.Contains(string(raw), "u:hunter2@"),
		"%q: %q shows a password", raw, text)
}
