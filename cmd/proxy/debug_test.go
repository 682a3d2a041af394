package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// The archive of pdctl debug has the data that a running proxy shows, and no secrets.
func TestDebugArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	testkit.WriteFile(t, keys, "secret-file team-a\n")
	etcd := etcdtest.Start(t)
	decode := fakevllm.StartTest(t, fakevllm.Options{Role: fakevllm.RoleDecode, Mode: fakevllm.Plain, Models: []string{"m"}, Shared: fakevllm.NewShared()})
	p := runProxy(t, "--etcd-endpoints", etcd.Endpoint(), "--decode", decode.Address(), "--api-key", "secret-client", "--api-keys-file", keys,
		"--admin-api-key", "secret-admin", "--log-level", "debug", "--engine-api-key", "secret-engine", "--otlp-endpoint", "http://user:secret-otlp@127.0.0.1:1")
	env := map[string]string{"PD_ETCD_ENDPOINTS": etcd.Endpoint(), "ADMIN_API_KEY": "secret-admin", "OPENAI_API_KEY": "secret-openai"}
	run := func(args ...string) (int, string) {
		t.Helper()
		var out testkit.Buffer
		code := pdctl.Run(t.Context(), args, &out, &out, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
		return code, out.String()
	}
	testkit.Eventually(t, tlsPatience, func() error { // the proxy writes --decode to etcd in the background
		if code, out := run("list"); code != 0 || !strings.Contains(out, decode.Address()) {
			return fmt.Errorf("exit %d\n%s", code, out)
		}
		return nil
	})
	path := filepath.Join(dir, "debug.tar.gz")
	if code, out := run("debug", "-f", path, "--proxy", p.url); code != 0 {
		t.Fatalf("exit %d\n%s", code, out)
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	zip, err := gzip.NewReader(f)
	require.NoError(t, err)
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		text, err := io.ReadAll(archive)
		require.NoError(t, err)
		files[strings.TrimPrefix(head.Name, "pdctl-debug/")] = string(text)
	}
	proxy := "proxies/127.0.0.1:" + p.port + "/"
	for name, want := range map[string]string{
		"status.json": `"membership_revision"`, "list.json": decode.Address(), "doctor.json": `"findings"`, "history.json": `"events"`, "notes.txt": "pdctl 0.",
		proxy + "status.json": `"decode_node_count"`, proxy + "readyz.json": `"ready"`, proxy + "metrics.txt": "pd_", proxy + "config.yaml": `# admin-api-key: "********"`,
		proxy + "log.txt": "msg=",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s: %q is not in\n%.2000s", name, want, files[name])
		}
	}
	for name, text := range files {
		if strings.Contains(text, "secret-") {
			t.Errorf("%s has a secret", name)
		}
	}
	if code, out := run("debug", "-f", path); code != 1 || !strings.Contains(out, "exists") {
		t.Errorf("an archive is overwritten: exit %d\n%s", code, out)
	}
	env["ADMIN_API_KEY"] = "secret-wrong"
	if code, out := run("debug", "-f", path+"2", "--proxy", p.url); code != 0 || strings.Contains(out, "secret-") {
		t.Errorf("exit %d\n%s", code, out)
	}
}
