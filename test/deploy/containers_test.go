package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fleet"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

// The images of the test: pdmesh as make release builds it, and etcd with etcdctl.
const (
	testImage = "pdmesh:compose-test"
	etcdImage = "etcd:compose-test"
)

// containers is the fleet of docker-compose.yml, in containers of one compose project.
type containers struct {
	t       *testing.T
	project string
	compose []string // docker compose with the files and the project
	proxies []string // URLs
}

// run runs a command and returns its output. It fails the test if the command fails.
func run(t *testing.T, command ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(command, " "), err, out.String(), errs.String())
	}
	return out.String()
}

// do runs docker compose.
func (c *containers) do(args ...string) string {
	c.t.Helper()
	return run(c.t, slices.Concat(c.compose, args)...)
}

// up starts the services that are not running, and waits until every health check passes.
func (c *containers) up() {
	c.t.Helper()
	c.do("up", "--detach", "--wait", "--wait-timeout", "180")
}

// incarnation returns the id of the record of an instance in etcd, "" if there is none.
func (c *containers) incarnation(address string) string {
	c.t.Helper()
	var list struct {
		Instances []instance.Listing
	}
	require.NoError(c.t, json.Unmarshal([]byte(c.do("exec", "-T", "proxy-1", "pdctl", "list", "-o", "json")), &list))
	for _, in := range list.Instances {
		if in.Address == address {
			return in.ID
		}
	}
	return ""
}

// serving waits until each of the proxies uses n prefill and m decode instances.
func (c *containers) serving(n, m int, proxies ...string) {
	c.t.Helper()
	for _, url := range proxies {
		testkit.Eventually(c.t, 2*time.Minute, func() error {
			res, err := http.Get(url + "/status") //nolint:noctx // the test has a timeout
			if err != nil {
				return err
			}
			defer res.Body.Close()
			var s fleet.Status
			if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
				return err
			}
			if len(s.PrefillNodes) != n || len(s.DecodeNodes) != m {
				return fmt.Errorf("%s uses %d prefill and %d decode instances, want %d and %d", url, len(s.PrefillNodes), len(s.DecodeNodes), n, m)
			}
			return nil
		})
	}
}

// start loads the images from dir and starts docker-compose.yml, with an override file for the images and the
// ports. It removes what it started when the test ends.
func start(t *testing.T, dir string) *containers {
	t.Helper()
	run(t, "docker", "load", "--input", filepath.Join(dir, "pdmesh.tar"))
	run(t, "docker", "import", "--change", "ENV PATH=/usr/local/bin", filepath.Join(dir, "etcd.tar"), etcdImage)
	ports, err := fleet.FreePorts(2)
	require.NoError(t, err)
	c := &containers{t: t, project: "pdmesh-test-" + strconv.Itoa(ports[0])}
	override := "services:\n"
	all := services(t)
	for _, name := range slices.Sorted(maps.Keys(all)) { // proxy-1 before proxy-2
		s := all[name]
		if len(s.Profiles) > 0 {
			continue
		}
		used := testImage
		if program(s) == "etcd" {
			used = etcdImage
		}
		override += fmt.Sprintf("  %s:\n    image: %s\n    pull_policy: never\n", name, used)
		if program(s) == "pdmesh-proxy" {
			port := ports[len(c.proxies)]
			override += fmt.Sprintf("    ports: !override [\"127.0.0.1:%d:8000\"]\n", port)
			c.proxies = append(c.proxies, fmt.Sprintf("http://127.0.0.1:%d", port))
		}
	}
	file := filepath.Join(t.TempDir(), "override.yml")
	require.NoError(t, os.WriteFile(file, []byte(override), 0o600))
	c.compose = []string{"docker", "compose", "--file", filepath.Join(root(t), composeFile), "--file", file, "--project-name", c.project}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command(c.compose[0], slices.Concat(c.compose[1:], []string{"logs", "--tail", "100"})...).CombinedOutput()
			t.Logf("%s", out)
		}
		out, err := exec.Command(c.compose[0], slices.Concat(c.compose[1:], []string{"down", "--volumes", "--timeout", "1"})...).CombinedOutput()
		if err != nil {
			t.Errorf("docker compose down: %v\n%s", err, out)
		}
		if out, err := exec.Command("docker", "rmi", testImage, etcdImage).CombinedOutput(); err != nil {
			t.Errorf("docker rmi: %v\n%s", err, out)
		}
	})
	c.up()
	return c
}

// Runs docker-compose.yml in containers under load: kills a decode engine with its agent, an etcd member and
// a proxy, crashes and disconnects the other decode engine, pauses a prefill engine, and restarts the
// proxies. No response is lost. A stream may break visibly if its decode engine is killed or disconnected.
func TestContainers(t *testing.T) {
	dir := os.Getenv("PD_TEST_COMPOSE") // has the images
	if dir == "" {
		t.Skip("make compose-test runs it")
	}
	for _, profile := range []string{"vllm", "agents", "monitoring"} {
		cmd := exec.CommandContext(t.Context(), "docker", "compose", "--file", filepath.Join(root(t), composeFile), "--profile", profile, "config", "--quiet")
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 { // warnings too
			t.Errorf("docker compose --profile %s config: %v\n%s", profile, err, out)
		}
	}
	began := time.Now()
	c := start(t, dir)
	require.Equal(t, 13, len(strings.Fields(c.do("ps", "--quiet"))), "containers run")
	c.serving(2, 2, c.proxies...)
	t.Logf("all containers are healthy after %s", time.Since(began).Round(time.Second))

	const clients = 12
	l := harness.StartRetryingLoad(t, "demo/simulated", clients, 0, c.proxies...)
	l.Served(2 * clients)
	step := func(name string, streams bool, fault func()) {
		t.Helper()
		from, broken := time.Now(), l.Broken()
		fault()
		l.Turn()
		l.Served(2 * clients)
		broken = l.Broken() - broken
		t.Logf("%s: %s, %d streams visibly broken", name, time.Since(from).Round(time.Second), broken)
		require.Len(t, l.Failures(), 0, "%s: lost responses", name)
		assert.False(t, broken > 0 && !streams, "%s broke %d streams", name, broken)
	}
	network, cut := c.project+"_fleet", strings.TrimSpace(c.do("ps", "--quiet", "decode-1"))
	step("docker compose kill etcd-1 proxy-2 decode-2 decode-2-agent", true, func() {
		c.do("kill", "etcd-1", "proxy-2", "decode-2", "decode-2-agent")
		c.serving(2, 1, c.proxies[0])
	})
	step("docker compose up", false, func() {
		c.up()
		c.serving(2, 2, c.proxies...)
	})
	step("crash of the engine decode-1", true, func() { // unlike docker kill, after which Docker does not restart it
		was := c.incarnation("decode-1:8200")
		pid, err := strconv.Atoi(strings.TrimSpace(run(t, "docker", "inspect", "--format", "{{.State.Pid}}", cut)))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		incarnation := func() string { return c.incarnation("decode-1:8200") }
		testkit.Until(t, 2*time.Minute, incarnation, func(is string) bool { return is != "" && is != was })
		c.serving(2, 2, c.proxies...)
	})
	step("docker network disconnect decode-1", true, func() {
		run(t, "docker", "network", "disconnect", network, cut)
		c.serving(2, 1, c.proxies...)
	})
	step("docker network connect decode-1", false, func() {
		run(t, "docker", "network", "connect", "--alias", "decode-1", network, cut)
		c.serving(2, 2, c.proxies...)
	})
	step("docker compose pause prefill-1", false, func() {
		c.do("pause", "prefill-1")
		c.serving(1, 2, c.proxies...)
	})
	step("docker compose unpause prefill-1", false, func() {
		c.do("unpause", "prefill-1")
		c.serving(2, 2, c.proxies...)
	})
	for _, name := range []string{"proxy-1", "proxy-2"} {
		step("docker compose restart "+name, false, func() {
			c.do("restart", name)
			c.up()
			c.serving(2, 2, c.proxies...)
		})
	}
	l.Finish()
	testkit.Eventually(t, 2*time.Minute, func() error {
		cmd := exec.CommandContext(t.Context(), c.compose[0], slices.Concat(c.compose[1:], []string{"exec", "-T", "proxy-1", "pdctl", "doctor"})...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("pdctl doctor: %w\n%s", err, out)
		}
		return nil
	})
	t.Logf("%s altogether", time.Since(began).Round(time.Second))
}
