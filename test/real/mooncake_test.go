package real_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// TestMooncake lets Mooncake's transfer engine store its metadata in the embedded etcd of a proxy: a
// buffer is transferred between two processes, and neither program changes the other's keys.
func TestMooncake(t *testing.T) {
	if short() {
		t.Skip("not part of the short form")
	}
	r := newRig(t)
	proxy, err := r.fleet.StartProxy(t.Context(), fleet.ProxySpec{Name: "proxy"})
	require.NoError(t, err)
	r.proxy = proxy
	node, err := r.fleet.StartNode(t.Context(), fleet.NodeSpec{Name: "decode", Role: instance.Decode, Connector: "plain", Model: model, Etcd: proxy.Etcd})
	require.NoError(t, err)
	r.awaitDecodes(1)
	cli, err := clientv3.New(clientv3.Config{Endpoints: proxy.Etcd})
	require.NoError(t, err)
	defer cli.Close()
	ours := keys(t, cli, "/pd/")
	if len(ours) == 0 {
		t.Fatal("nothing below /pd/")
	}

	ports, err := fleet.FreePorts(2)
	require.NoError(t, err)
	names := []string{fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])}
	metadata := "etcd://" + proxy.Etcd[0]
	serve := r.segment(t, metadata, "serve", names[0])
	address := serve.line("buffer ")
	const text = "a block of the KV cache"
	write := r.segment(t, metadata, "write", names[1], names[0], address, text)
	if got := write.line("read "); got != text {
		t.Errorf("read back %q, want %q", got, text)
	}
	write.end()

	theirs := keys(t, cli, "mooncake/")
	if !slices.ContainsFunc(theirs, func(k string) bool { return strings.HasSuffix(k, names[0]) }) {
		t.Errorf("the serving segment is not in etcd: %q", theirs)
	}
	logf("keys of Mooncake while a segment serves: %q", theirs)
	// An instance registers and leaves; the keys of Mooncake are not affected.
	require.NoError(t, node.Kill())
	r.awaitDecodes(0)
	if after := keys(t, cli, "mooncake/"); !slices.Equal(after, theirs) {
		t.Errorf("Mooncake's keys changed from %q to %q", theirs, after)
	}
	require.NoError(t, serve.in.Close())
	if got := serve.line("holds "); got != text {
		t.Errorf("the buffer holds %q, want %q", got, text)
	}
	serve.end()
	testkit.Eventually(t, patience, func() error {
		if left := keys(t, cli, "mooncake/"); len(left) > 0 {
			return fmt.Errorf("left behind: %q", left)
		}
		return nil
	})
	// The proxy's own keys still exist; the instance's key was deleted with its lease.
	ours = slices.DeleteFunc(ours, func(k string) bool { return strings.Contains(k, node.Address) })
	now := keys(t, cli, "/pd/")
	for _, k := range ours {
		if !slices.Contains(now, k) {
			t.Errorf("%s was deleted", k)
		}
	}
}

// keys returns the keys below a prefix.
func keys(t *testing.T, cli *clientv3.Client, prefix string) (out []string) {
	t.Helper()
	resp, err := cli.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	for _, kv := range resp.Kvs {
		out = append(out, string(kv.Key))
	}
	slices.Sort(out)
	return out
}

// segment is a running mooncake_segment.py.
type segment struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	log *testkit.Buffer
}

func (r *rig) segment(t *testing.T, args ...string) *segment {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, filepath.Join(lab.dir, "venv", "bin", "python"), append([]string{absolute("lab/mooncake_segment.py")}, args...)...)
	cmd.Env = append([]string{"HOME=" + r.fleet.Dir()}, lab.env...)
	s := &segment{t: t, cmd: cmd, log: &testkit.Buffer{}}
	cmd.Stderr = s.log
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	s.in, s.out = in, bufio.NewScanner(out)
	require.NoError(t, cmd.Start())
	return s
}

// line waits for a line of output that begins with a word and returns its rest.
func (s *segment) line(word string) string {
	s.t.Helper()
	for s.out.Scan() {
		if rest, ok := strings.CutPrefix(s.out.Text(), word); ok {
			return rest
		}
	}
	s.t.Fatalf("no line %q: %v\n%s", word, s.cmd.Wait(), s.log)
	return ""
}

func (s *segment) end() {
	s.t.Helper()
	for s.out.Scan() {
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("%v\n%s", err, s.log)
	}
}
