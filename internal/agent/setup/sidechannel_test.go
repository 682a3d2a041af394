package setup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

const nixlInside = `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[` + nixlProducer + `,{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}]}}`

// taken holds a port of this machine.
func taken(t *testing.T) int {
	t.Helper()
	l := testkit.Listen(t)
	return l.Addr().(*net.TCPAddr).Port
}

func TestSideChannel(t *testing.T) {
	t.Parallel()
	used := taken(t)
	for _, tc := range []struct {
		name    string
		env     map[string]string
		command []string
		want    sideChannel
	}{
		{"no NIXL", nil, nil, sideChannel{}},
		{"the default engine", nil, []string{"--kv-transfer-config", nixlProducer}, sideChannel{"localhost", 5600, 0, 1, true}},
		{"another engine", nil, []string{"--port", "8100", "--kv-transfer-config", nixlProducer}, sideChannel{"localhost", 17200, 0, 1, true}},
		{"below vLLM's port", nil, []string{"--port", "7999", "--kv-transfer-config", nixlProducer}, sideChannel{"localhost", 31584, 0, 1, true}},
		{"in a MultiConnector", nil, []string{"--port", "8101", "--kv-transfer-config", nixlInside}, sideChannel{"localhost", 17216, 0, 1, true}},
		{"ranks", nil, []string{"--port", "8102", "-dp", "4", "-tp", "2", "--kv-transfer-config", nixlProducer}, sideChannel{"localhost", 17232, 0, 4, true}},
		{"one rank", nil, []string{"--port", "8103", "-dp", "4", "-dpn", "3", "--kv-transfer-config", nixlProducer}, sideChannel{"localhost", 17248, 3, 1, true}},
		{"all ranks on headless nodes", nil, []string{"--port", "8104", "-dp", "4", "-dpl", "0", "--kv-transfer-config", nixlProducer}, sideChannel{}},
		{
			"given", map[string]string{EnvSidePort: "7001", envSideHost: "127.0.0.1"},
			[]string{"--kv-transfer-config", nixlProducer}, sideChannel{"127.0.0.1", 7001, 0, 1, false},
		},
		{"given, and used", map[string]string{EnvSidePort: strconv.Itoa(used)}, []string{"--kv-transfer-config", nixlProducer}, sideChannel{"localhost", used, 0, 1, false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"--role=prefill", "--", "vllm", "serve", "M"}, tc.command...)
			c := mustLoad(t, tc.env, args...)
			if c.Side != tc.want && !(c.Side.Chosen && busy(tc.want)) {
				t.Errorf("got %+v, want %+v", c.Side, tc.want)
			}
		})
	}
	for _, bad := range []string{"x", "0", "65535"} {
		_, err := loadArgs(t, map[string]string{EnvSidePort: bad}, "--role=prefill", "--", "vllm", "serve", "M", "-dp=2", "--kv-transfer-config", nixlProducer)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s=%q is not a port, or leaves less than 2 ports after it", EnvSidePort, bad)) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// busy reports whether another party on this machine has what the test wants.
func busy(s sideChannel) bool { return s.Free(context.Background()) != nil }

// Ports that are used are not chosen, nor a range in which one is.
func TestSideChannelPassesOverUsedPorts(t *testing.T) {
	t.Parallel()
	testkit.Eventually(t, patience, func() error {
		l := testkit.Listen(t)
		defer func() { _ = l.Close() }()
		used := l.Addr().(*net.TCPAddr).Port
		s := sideChannel{host: "localhost", port: used - 1, count: 2}
		// The port below may be another test's: then the next one is tried.
		if err := s.Free(t.Context()); !errors.Is(err, ErrSideTaken) || !strings.Contains(err.Error(), strconv.Itoa(used)) || !strings.Contains(err.Error(), EnvSidePort) {
			return fmt.Errorf("%d and the one below: %w", used, err)
		}
		return nil
	})
	first := sideChannel{host: "localhost", count: 1}
	first.choose("127.0.0.1:8777")
	hold, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(first.port))
	if err == nil { // else another process has taken it, which is as good
		defer func() { _ = hold.Close() }()
	}
	second := sideChannel{host: "localhost", count: 1}
	if second.choose("127.0.0.1:8777"); second.port == first.port || second.port == 0 {
		t.Errorf("chose %d twice", second.port)
	}
}

// Engines on other machines cannot fetch from one whose side channel is on loopback,
// which is vLLM's default.
func TestSideChannelOfAnotherMachine(t *testing.T) {
	t.Parallel()
	const note = envSideHost + " is not set"
	for _, tc := range []struct {
		host string
		env  map[string]string
		want bool
	}{
		{"10.0.0.7", nil, true},
		{"10.0.0.7", map[string]string{envSideHost: "10.0.0.7"}, false},
		{"127.0.0.1", nil, false},
	} {
		c := mustLoad(t, tc.env, "--role=prefill", "--etcd-endpoints=127.0.0.1:1", "--", "vllm", "serve", "M", "--host", tc.host, "--kv-transfer-config", nixlProducer)
		if got := strings.Contains(strings.Join(c.Notes, "\n"), note); got != tc.want {
			t.Errorf("%s, %v: noted %v in %q", tc.host, tc.env, got, c.Notes)
		}
	}
}
