// Package kubernetes_test checks deploy/kubernetes against the types of Kubernetes. It is in this module
// because the product does not need them; test/deploy checks the command lines.
package kubernetes_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// manifests are the objects of all files.
type manifests struct {
	services  []*corev1.Service
	pods      map[string]*corev1.PodTemplateSpec // by name of the Deployment or StatefulSet
	replicas  map[string]int32
	deadlines map[string]*int32 // progressDeadlineSeconds of Deployments
	selectors map[string]*metav1.LabelSelector
	budgets   map[string]*policyv1.PodDisruptionBudget
	policies  []*networkingv1.NetworkPolicy
	claims    []corev1.PersistentVolumeClaim
}

// load decodes all files. A field that the type does not have, or has twice, is an error.
func load(t *testing.T) *manifests {
	t.Helper()
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v", files, err)
	}
	m := &manifests{
		pods: map[string]*corev1.PodTemplateSpec{}, replicas: map[string]int32{}, deadlines: map[string]*int32{}, selectors: map[string]*metav1.LabelSelector{},
		budgets: map[string]*policyv1.PodDisruptionBudget{},
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, doc := range bytes.Split(raw, []byte("\n---\n")) {
			if err := m.add(doc); err != nil {
				t.Errorf("%s, object %d: %v", file, i+1, err)
			}
		}
	}
	return m
}

func (m *manifests) add(doc []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	pod := func(name string, replicas *int32, s *metav1.LabelSelector, p *corev1.PodTemplateSpec) {
		m.replicas[name], m.selectors[name], m.pods[name] = *replicas, s, p
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 Deployment":
		var d appsv1.Deployment
		if err := strict(doc, &d); err != nil {
			return err
		}
		m.deadlines[d.Name] = d.Spec.ProgressDeadlineSeconds
		pod(d.Name, d.Spec.Replicas, d.Spec.Selector, &d.Spec.Template)
	case "apps/v1 StatefulSet":
		var s appsv1.StatefulSet
		if err := strict(doc, &s); err != nil {
			return err
		}
		m.claims = append(m.claims, s.Spec.VolumeClaimTemplates...)
		pod(s.Name, s.Spec.Replicas, s.Spec.Selector, &s.Spec.Template)
	case "v1 Service":
		s := new(corev1.Service)
		m.services = append(m.services, s)
		return strict(doc, s)
	case "policy/v1 PodDisruptionBudget":
		b := new(policyv1.PodDisruptionBudget)
		err := strict(doc, b)
		m.budgets[b.Name] = b
		return err
	case "networking.k8s.io/v1 NetworkPolicy":
		p := new(networkingv1.NetworkPolicy)
		m.policies = append(m.policies, p)
		return strict(doc, p)
	default:
		return os.ErrInvalid // no kind that these manifests use
	}
	return nil
}

// strict decodes as the API server does with fieldValidation=Strict: names are case-sensitive.
func strict(doc []byte, into any) error {
	raw, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	more, err := json.UnmarshalStrict(raw, into)
	return errors.Join(append(more, err)...)
}

func TestManifests(t *testing.T) {
	m := load(t)
	if names := slices.Sorted(maps.Keys(m.pods)); !slices.Equal(names, []string{"decode", "etcd", "prefill", "proxy"}) {
		t.Fatalf("pods of %v", names)
	}
	for name, p := range m.pods {
		if !maps.Equal(m.selectors[name].MatchLabels, p.Labels) {
			t.Errorf("%s selects %v, its pods have %v", name, m.selectors[name].MatchLabels, p.Labels)
		}
		b := m.budgets[name]
		if b == nil || !maps.Equal(b.Spec.Selector.MatchLabels, p.Labels) || *b.Spec.MaxUnavailable != intstr.FromInt32(1) || m.replicas[name] < 2 {
			t.Errorf("%s: %d replicas, disruption budget %+v", name, m.replicas[name], b)
		}
		// Without an engine no proxy is ready: that must not block the drain of a node.
		if got := b.Spec.UnhealthyPodEvictionPolicy; (got != nil && *got == policyv1.AlwaysAllow) != (name == "proxy") {
			t.Errorf("%s: unhealthyPodEvictionPolicy is wrong", name)
		}
		if p.Spec.EnableServiceLinks == nil || *p.Spec.EnableServiceLinks || p.Spec.AutomountServiceAccountToken == nil || *p.Spec.AutomountServiceAccountToken {
			t.Errorf("%s gets variables of services, or a token", name)
		}
		volumes := []string{}
		for _, v := range p.Spec.Volumes {
			volumes = append(volumes, v.Name)
		}
		for _, v := range m.claims {
			volumes = append(volumes, v.Name)
		}
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			for _, v := range c.VolumeMounts {
				if !slices.Contains(volumes, v.Name) {
					t.Errorf("%s mounts %s, which is not a volume", name, v.Name)
				}
			}
			probed(t, name, &c)
		}
	}
	for _, s := range m.services {
		found := false
		for name, p := range m.pods {
			if maps.Equal(s.Spec.Selector, p.Labels) {
				found = true
				for _, port := range s.Spec.Ports {
					if port.TargetPort.StrVal != "" && !hasPort(&p.Spec.Containers[0], port.TargetPort.StrVal) {
						t.Errorf("the service %s has no port of %s", s.Name, name)
					}
				}
			}
		}
		if !found {
			t.Errorf("the service %s selects %v", s.Name, s.Spec.Selector)
		}
	}
	if len(m.services) != 2 || len(m.policies) != 1 || len(m.claims) != 1 || m.replicas["etcd"] != 3 {
		t.Errorf("%d services, %d policies, %d claims, %d members of etcd", len(m.services), len(m.policies), len(m.claims), m.replicas["etcd"])
	}
}

func hasPort(c *corev1.Container, name string) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

// probed checks that the probes of a container use ports of that container.
func probed(t *testing.T, name string, c *corev1.Container) {
	t.Helper()
	for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p != nil && p.HTTPGet != nil && !hasPort(c, p.HTTPGet.Port.StrVal) {
			t.Errorf("%s/%s: no port %s", name, c.Name, p.HTTPGet.Port.StrVal)
		}
	}
}

// A proxy is ready while /readyz succeeds and restarted only if /livez fails. The agent is a sidecar, and
// vLLM is stopped when the agent has drained it.
func TestProbesAndShutdown(t *testing.T) {
	m := load(t)
	proxy := &m.pods["proxy"].Spec.Containers[0]
	if proxy.ReadinessProbe.HTTPGet.Path != "/readyz" || proxy.LivenessProbe.HTTPGet.Path != "/livez" {
		t.Errorf("probes of the proxy: %+v", proxy)
	}
	for _, role := range []string{"prefill", "decode"} {
		spec := &m.pods[role].Spec
		agent, vllm := &spec.InitContainers[0], &spec.Containers[0]
		if agent.RestartPolicy == nil || *agent.RestartPolicy != corev1.ContainerRestartPolicyAlways || agent.StartupProbe != nil {
			t.Errorf("%s: the agent is not a sidecar, or vLLM waits for it", role)
		}
		if !slices.Equal(agent.ReadinessProbe.Exec.Command, []string{"pdmesh-agent", "health"}) {
			t.Errorf("%s: ready by %v", role, agent.ReadinessProbe.Exec)
		}
		if vllm.Lifecycle == nil || vllm.Lifecycle.PreStop.Exec == nil {
			t.Errorf("%s: vLLM has no preStop hook", role)
		}
		// With one GPU, a new pod waits until the old one has ended.
		startup := vllm.StartupProbe.PeriodSeconds*vllm.StartupProbe.FailureThreshold + int32(*spec.TerminationGracePeriodSeconds)
		if got := m.deadlines[role]; got == nil || *got <= startup {
			t.Errorf("%s: a rollout fails before vLLM may have started, after %d s", role, startup)
		}
		if limit := vllm.Resources.Limits["nvidia.com/gpu"]; limit.Value() != 1 {
			t.Errorf("%s: %v GPUs", role, limit)
		}
	}
}

// load refuses misspelled and duplicate fields.
func TestDecodingIsStrict(t *testing.T) {
	for _, spec := range []string{"{selectors: {}}", "{clusterip: None}", "{type: A, type: B}"} {
		if err := new(manifests).add([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: " + spec + "\n")); err == nil {
			t.Errorf("%s was accepted", spec)
		}
	}
}
