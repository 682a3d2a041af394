package deploy_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// kubernetesContainer has the keys of a container that tests read. tools/kubernetes decodes the files as a
// whole.
type kubernetesContainer struct {
	Name, Image   string
	Command, Args []string
	Env           []struct{ Name, Value string }
	Ports         []struct {
		Name   string
		Number int `yaml:"containerPort"`
	}
	LivenessProbe struct {
		HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
	} `yaml:"livenessProbe"`
	Lifecycle struct {
		PreStop struct{ Exec struct{ Command []string } } `yaml:"preStop"`
	}
}

// kubernetesPod is the template of a Deployment or StatefulSet.
type kubernetesPod struct {
	Grace          int                   `yaml:"terminationGracePeriodSeconds"`
	InitContainers []kubernetesContainer `yaml:"initContainers"`
	Containers     []kubernetesContainer
}

// kubernetesPods returns the templates by name.
func kubernetesPods(t *testing.T) map[string]kubernetesPod {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), "deploy/kubernetes/*.yaml"))
	require.NoError(t, err)
	pods := map[string]kubernetesPod{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		for doc := range bytes.SplitSeq(raw, []byte("\n---\n")) {
			var o struct {
				Metadata struct{ Name string }
				Spec     struct{ Template struct{ Spec kubernetesPod } }
			}
			require.NoError(t, yaml.Unmarshal(doc, &o), file)
			if p := o.Spec.Template.Spec; len(p.Containers) > 0 {
				pods[o.Metadata.Name] = p
			}
		}
	}
	require.Equal(t, 4, len(pods), "pods in %v", files)
	return pods
}

// The programs accept the command lines and the environment of the manifests, and each pod may take longer
// to stop than its programs.
func TestKubernetesFlags(t *testing.T) {
	t.Parallel()
	programs := map[string]bool{}
	podIP := strings.NewReplacer("$(POD_IP)", "10.0.0.7")
	for name, p := range kubernetesPods(t) {
		for _, c := range slices.Concat(p.InitContainers, p.Containers) {
			if c.Image != image {
				continue
			}
			programs[c.Command[0]] = true
			var args []string
			for _, arg := range c.Args {
				args = append(args, podIP.Replace(arg))
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, c.Command[0]), append(args, "--print-config")...)
			cmd.Env = []string{"HOME=" + t.TempDir()}
			for _, e := range c.Env {
				cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v: %v\n%s", name, c.Args, err, out)
			}
			limit := 0 * time.Second
			for _, m := range regexp.MustCompile(`--(?:shutdown-delay|shutdown-timeout|drain-timeout)=(\S+)`).FindAllStringSubmatch(strings.Join(args, " "), -1) {
				d, err := time.ParseDuration(m[1])
				assert.NoError(t, err)
				limit += d
			}
			if grace := time.Duration(p.Grace) * time.Second; limit == 0 || grace < limit+10*time.Second {
				t.Errorf("%s: terminationGracePeriodSeconds is %v, the program may take %v", name, grace, limit)
			}
		}
	}
	assert.True(t, programs["pdmesh-proxy"] && programs["pdmesh-agent"], "the programs are %v", programs)
}

// The autoscaler of docs/roles.md scales a Deployment of the manifests.
func TestKubernetesScaleTarget(t *testing.T) {
	t.Parallel()
	target := regexp.MustCompile(`scaleTargetRef: \{name: (.+?)\}`).FindStringSubmatch(string(read(t, "docs/roles.md")))
	require.NotNil(t, target)
	assert.Contains(t, kubernetesPods(t), target[1])
}

// Kubernetes does not restart a member of etcd that waits for the others: the restarts, with their growing
// delay, would keep the members from a quorum.
func TestKubernetesEtcdLivesWithoutQuorum(t *testing.T) {
	t.Parallel()
	c := kubernetesPods(t)["etcd"].Containers[0]
	dir, probed := t.TempDir(), ""
	addresses := []string{"/var/lib/etcd", dir}
	for _, p := range c.Ports {
		at := testkit.FreePort(t)
		addresses = append(addresses, fmt.Sprintf("0.0.0.0:%d", p.Number), at, fmt.Sprintf("etcd-0.etcd:%d", p.Number), at)
		if p.Name == c.LivenessProbe.HTTPGet.Port {
			probed = "http://" + at + c.LivenessProbe.HTTPGet.Path
		}
	}
	addresses = append(addresses, "etcd-1.etcd:2380", testkit.FreePort(t), "etcd-2.etcd:2380", testkit.FreePort(t))
	var args []string
	for _, arg := range c.Command[1:] {
		arg = strings.ReplaceAll(arg, "$(POD_NAME)", "etcd-0")
		args = append(args, strings.NewReplacer(addresses...).Replace(arg))
	}
	etcd := exec.CommandContext(t.Context(), filepath.Join(binDir, c.Command[0]), append(args, "--log-level=error")...)
	etcd.Stderr = os.Stderr
	require.NoError(t, etcd.Start())
	t.Cleanup(func() { _ = etcd.Wait() }) // the context ends it
	client := http.Client{Timeout: 10 * time.Second}
	testkit.Eventually(t, time.Minute, func() error {
		res, err := client.Get(probed) //nolint:noctx // it has a timeout
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", probed, res.Status)
		}
		return nil
	})
}

// The preStop hook of vLLM ends when the agent next to it has drained and deregistered the instance.
func TestKubernetesPreStopDrains(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"curl", "sh"} {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("REQUIRE_CURL") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	p := kubernetesPods(t)["decode"]
	dir := t.TempDir()
	etcd := etcdtest.Start(t)
	engine := fakevllm.StartTest(t, fakevllm.Options{Models: []string{"m"}})
	const path = "/run/pdmesh/agent.sock"
	socket := filepath.Join(dir, "agent.sock")
	agent := exec.CommandContext(t.Context(), filepath.Join(binDir, "pdmesh-agent"), "--role=decode", "--address="+engine.Address(),
		"--etcd-endpoints="+etcd.Endpoint(), "--socket="+socket)
	agent.Env = []string{"HOME=" + dir}
	var output bytes.Buffer
	agent.Stdout, agent.Stderr = &output, &output
	require.NoError(t, agent.Start())
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	client := etcdtest.Client(t, etcd.Endpoint())
	registered := func() (bool, error) {
		got, err := client.Get(t.Context(), "/pd/decode/"+engine.Address())
		return err == nil && got.Count == 1, err
	}
	testkit.Eventually(t, time.Minute, func() error {
		if ok, err := registered(); !ok {
			return fmt.Errorf("the instance is not registered: %w", err)
		}
		return nil
	})
	hook := p.Containers[0].Lifecycle.PreStop.Exec.Command
	if strings.Count(strings.Join(hook, " "), path) != 2 || !slices.Contains(p.InitContainers[0].Args, "--socket="+path) {
		t.Fatalf("the hook %q and the agent do not share %s", hook, path)
	}
	var args []string
	for _, arg := range hook[1:] {
		args = append(args, strings.ReplaceAll(arg, path, socket))
	}
	if out, err := exec.CommandContext(t.Context(), hook[0], args...).CombinedOutput(); err != nil && len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
	if ok, err := registered(); ok || err != nil {
		t.Errorf("after the hook the instance is registered (%v)", err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("agent: %v\n%s", err, output.String())
		}
	case <-time.After(time.Minute):
		t.Error("the agent runs")
	}
}
