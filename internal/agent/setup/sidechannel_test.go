package setup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

const nixlInside = `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[` + nixlProducer + `,{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}]}}`

// taken listens at a port of this machine, and returns it.
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
		{"the default engine", nil, []string{"--kv-transfer-config", nixlProducer}, sideChannel{host: "localhost", port: 5600, count: 1, Chosen: true}},
		{"another engine", nil, []string{"--port", "8100", "--kv-transfer-config", nixlProducer}, sideChannel{host: "localhost", port: 17200, count: 1, Chosen: true}},
		{"below vLLM's port", nil, []string{"--port", "7999", "--kv-transfer-config", nixlProducer}, sideChannel{host: "localhost", port: 31584, count: 1, Chosen: true}},
		{"in a MultiConnector", nil, []string{"--port", "8101", "--kv-transfer-config", nixlInside}, sideChannel{host: "localhost", port: 17216, count: 1, Chosen: true}},
		{"ranks", nil, []string{"--port", "8102", "-dp", "4", "-tp", "2", "--kv-transfer-config", nixlProducer}, sideChannel{host: "localhost", port: 17232, count: 4, Chosen: true}},
		{"one rank", nil, []string{"--port", "8103", "-dp", "4", "-dpn", "3", "--kv-transfer-config", nixlProducer}, sideChannel{host: "localhost", port: 17248, first: 3, count: 1, Chosen: true}},
		{"all ranks on headless nodes", nil, []string{"--port", "8104", "-dp", "4", "-dpl", "0", "--kv-transfer-config", nixlProducer}, sideChannel{}},
		{
			"given", map[string]string{EnvSidePort: "7001", envSideHost: "127.0.0.1"},
			[]string{"--kv-transfer-config", nixlProducer}, sideChannel{host: "127.0.0.1", port: 7001, count: 1},
		},
		{"given, and used", map[string]string{EnvSidePort: strconv.Itoa(used)}, []string{"--kv-transfer-config", nixlProducer}, sideChannel{host: "localhost", port: used, count: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"--role=prefill", "--", "vllm", "serve", "M"}, tc.command...)
			// Another test may use the port for a moment.
			testkit.Eventually(t, patience, func() error {
				c := mustLoad(t, tc.env, args...)
				c.Side.Release()
				if c.Side != tc.want && !(c.Side.Chosen && busy(tc.want)) {
					return fmt.Errorf("got %+v, want %+v", c.Side, tc.want)
				}
				return nil
			})
		})
	}
	for _, bad := range []string{"x", "0", "65535"} {
		_, err := loadArgs(t, map[string]string{EnvSidePort: bad}, "--role=prefill", "--", "vllm", "serve", "M", "-dp=2", "--kv-transfer-config", nixlProducer)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s=%q is not a port, or leaves less than 2 ports after it", EnvSidePort, bad)) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// busy reports whether another process on this machine uses a port that the test needs.
func busy(s sideChannel) bool { return s.Free(context.Background()) != nil }

// A port in use is not chosen, nor a range that contains one.
func TestSideChannel_SkipsUsedPorts(t *testing.T) {
	t.Parallel()
	testkit.Eventually(t, patience, func() error {
		l := testkit.Listen(t)
		defer func() { _ = l.Close() }()
		used := l.Addr().(*net.TCPAddr).Port
		s := sideChannel{host: "localhost", port: used - 1, count: 2}
		// Another test may use the port below: then the next one is tried.
		if err := s.Free(t.Context()); !errors.Is(err, ErrSideTaken) || !strings.Contains(err.Error(), strconv.Itoa(used)) || !strings.Contains(err.Error(), EnvSidePort) {
			return fmt.Errorf("%d and the one below: %w", used, err)
		}
		return nil
	})
	first := sideChannel{host: "localhost", count: 1}
	first.choose("127.0.0.1:8777")
	first.Release()
	hold, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(first.port))
	if err == nil { // otherwise another process uses the port, with the same effect
		defer func() { _ = hold.Close() }()
	}
	second := sideChannel{host: "localhost", count: 1}
	defer second.Release()
	second.choose("127.0.0.1:8777")
	assert.True(t, second.port != first.port && second.port != 0, "chose %d twice", second.port)
}

// No agent chooses a port that another agent has chosen for an engine that does not listen yet.
func TestSideChannelsOfTwoEngines(t *testing.T) {
	t.Parallel()
	first, second := sideChannel{host: "localhost", count: 1}, sideChannel{host: "localhost", count: 1}
	first.choose("127.0.0.1:8778")
	defer first.Release()
	second.choose("127.0.0.1:9778")
	defer second.Release()
	assert.NotEqual(t, second.port, first.port)
}

// Engines on other machines cannot fetch from an engine whose
// side channel is on loopback, which is vLLM's default.
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
		assert.Equal(t, tc.want, strings.Contains(strings.Join(c.Notes, "\n"), note),
			"%s, %v: noted in %q", tc.host, tc.env, c.Notes)
	}
}

// The record has the side channel ports of the ranks that are started here, next to other ports.
func TestRecord_SideChannel(t *testing.T) {
	t.Parallel()
	other := map[string][]int{instance.PortBootstrap: {8998}}
	for _, tc := range []struct {
		name string
		side sideChannel
		want map[string][]int
	}{
		{"no NIXL engine of ours", sideChannel{}, map[string][]int{instance.PortBootstrap: {8998}}},
		{"one rank", sideChannel{port: 5600, count: 1}, map[string][]int{instance.PortBootstrap: {8998}, instance.PortNIXL: {5600}}},
		{"ranks 2 and 3", sideChannel{port: 5600, first: 2, count: 2}, map[string][]int{instance.PortBootstrap: {8998}, instance.PortNIXL: {5602, 5603}}},
	} {
		c := Config{Facts: instance.Record{Ports: other}, Side: tc.side}
		got := c.Record()
		d := cmp.Diff(tc.want, got.Ports)
		assert.Equal(t, "", d, "%s (-want +got)\n%s", tc.name, d)
	}
	assert.Len(t, other, 1, "the facts have changed")
}
