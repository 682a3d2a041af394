package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ProxySpec describes a proxy. StartProxy fills in the fields left empty, so that
// the Spec of a Proxy that was killed starts it again, with its data.
type ProxySpec struct {
	Name string
	Port int // 0 means a free one
	// EtcdEndpoints are those of a separate etcd; without any, the proxy embeds
	// etcd on EtcdPort (0 means a free one).
	EtcdEndpoints []string
	EtcdPort      int
	AdminKey      string
	Args          []string
	Env           []string
}

// Proxy is a running proxy.
type Proxy struct {
	*Process
	Spec    ProxySpec
	Address string   // host:port for clients
	Etcd    []string // endpoints that the proxy uses, given or embedded
	fleet   *Fleet
}

// URL returns the base URL of the proxy.
func (p *Proxy) URL() string { return "http://" + p.Address }

// StartProxy starts a proxy and waits until it has read the membership.
func (f *Fleet) StartProxy(ctx context.Context, s ProxySpec) (*Proxy, error) {
	ports, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	s.Port = cmp.Or(s.Port, ports[0])
	args := []string{"--host", "127.0.0.1", "--port", strconv.Itoa(s.Port),
		"--state-dir", filepath.Join(f.dir, "proxy-"+strconv.Itoa(s.Port))}
	p := &Proxy{Address: loopback(s.Port), Etcd: s.EtcdEndpoints, fleet: f}
	if len(s.EtcdEndpoints) > 0 {
		args = append(args, "--etcd-endpoints", strings.Join(s.EtcdEndpoints, ","))
	} else {
		s.EtcdPort = cmp.Or(s.EtcdPort, ports[1])
		p.Etcd = []string{loopback(s.EtcdPort)}
		args = append(args, "--etcd-listen", p.Etcd[0], "--etcd-data-dir", filepath.Join(f.dir, "etcd-"+strconv.Itoa(s.EtcdPort)))
	}
	env := slices.Concat(f.o.ProxyEnv, s.Env)
	if s.AdminKey != "" {
		env = append(env, "ADMIN_API_KEY="+s.AdminKey) // arguments are visible to every user of the machine
	}
	p.Spec = s
	p.Process, err = f.Start(ctx, Spec{
		Name: s.Name, Program: "proxy", Args: append(args, s.Args...), Env: env,
		Ready: func(ctx context.Context) error { return f.started(ctx, p.URL()+"/readyz") },
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// started returns nil once /readyz reports that a proxy has started. The status is
// 503 as long as no request can be served.
func (f *Fleet) started(ctx context.Context, url string) error {
	status, raw, err := f.read(ctx, url)
	if err != nil || status == http.StatusOK {
		return err
	}
	var body struct{ Started bool }
	if err := json.Unmarshal(raw, &body); err != nil || !body.Started {
		return fmt.Errorf("GET %s: %d: %s", url, status, instance.Printable(string(raw), 300))
	}
	return nil
}

// Status is the part of /status that callers of this package use.
type Status struct {
	PrefillNodes []string               `json:"prefill_nodes"`
	DecodeNodes  []string               `json:"decode_nodes"`
	Instances    []instance.Listing     `json:"instances"`
	Revision     int64                  `json:"revision"`
	Queues       []instance.ListedQueue `json:"queues"`
}

// Status reads the /status of the proxy.
func (p *Proxy) Status(ctx context.Context) (Status, error) {
	var s Status
	err := p.fleet.Get(ctx, p.URL()+"/status", &s)
	return s, err
}

// WaitFor waits until the proxy serves exactly these numbers of instances.
func (p *Proxy) WaitFor(ctx context.Context, prefill, decode int) error {
	err := p.fleet.await(ctx, func(ctx context.Context) error {
		s, err := p.Status(ctx)
		if err != nil {
			return err
		}
		if len(s.PrefillNodes) != prefill || len(s.DecodeNodes) != decode {
			return fmt.Errorf("it serves %d prefill and %d decode instances", len(s.PrefillNodes), len(s.DecodeNodes))
		}
		return nil
	}, p.Process)
	if err != nil {
		return fmt.Errorf("wait for %d prefill and %d decode instances in %s: %w", prefill, decode, p.name, err)
	}
	return nil
}

// NodeSpec describes a simulated engine and the agent next to it.
type NodeSpec struct {
	Name      string // of the engine; the agent is called <Name>-agent
	Role      instance.Role
	Port      int    // 0 means a free one
	Connector string // --mode of the engine and --connector of the agent
	// KVPort is the port of the connector: the bootstrap server of a mooncake prefill
	// engine, the side channel of a p2p prefill engine, what an lmcache prefill engine
	// notifies, or the buffer allocation of an lmcache decode engine. 0 means a free one.
	KVPort int
	Model  string
	// TTFT is the time before the first token, ITL the time between two tokens.
	TTFT, ITL time.Duration
	// Etcd holds the endpoints for the agent; without any, no agent is started.
	Etcd       []string
	TTL        time.Duration // of the lease; 0 means the default of the agent
	EngineArgs []string
	AgentArgs  []string
}

// Node is a running engine with its agent.
type Node struct {
	Spec    NodeSpec
	Address string // host:port of the engine
	Engine  *Process
	Agent   *Process // nil without etcd
	fleet   *Fleet
}

// Get sends a GET request to the engine and decodes its JSON answer.
func (n *Node) Get(ctx context.Context, path string, into any) error {
	return n.fleet.Get(ctx, "http://"+n.Address+path, into)
}

// StartNode starts an engine, waits for its /health, and starts its agent.
// Proxy.WaitFor waits until the agent has registered it.
func (f *Fleet) StartNode(ctx context.Context, s NodeSpec) (*Node, error) {
	ports, err := FreePorts(2)
	if err != nil {
		return nil, err
	}
	s.Port, s.KVPort = cmp.Or(s.Port, ports[0]), cmp.Or(s.KVPort, ports[1])
	n := &Node{Spec: s, Address: loopback(s.Port), fleet: f}
	args := []string{
		"--host", "127.0.0.1", "--port", strconv.Itoa(s.Port), "--role", string(s.Role), "--mode", s.Connector,
		"--model", s.Model, "--ttft", s.TTFT.String(), "--itl", s.ITL.String(),
	}
	connector, _ := s.connectorArgs()
	n.Engine, err = f.Start(ctx, Spec{
		Name: s.Name, Program: "fakevllm", Args: slices.Concat(args, connector, s.EngineArgs),
		Ready: func(ctx context.Context) error { return f.Get(ctx, "http://"+n.Address+"/health", nil) },
	})
	if err != nil || len(s.Etcd) == 0 {
		return n, err
	}
	return n, n.startAgent(ctx)
}

// connectorArgs returns the arguments for KVPort of the engine and of its agent.
func (s *NodeSpec) connectorArgs() (engine, agent []string) {
	port, address := strconv.Itoa(s.KVPort), loopback(s.KVPort)
	switch s.Connector + " " + string(s.Role) {
	case "mooncake prefill":
		return []string{"--bootstrap-port", port}, []string{"--bootstrap-port", port}
	case "p2p prefill":
		return []string{"--side-channel-port", port}, []string{"--p2p-port", port}
	case "lmcache prefill":
		return []string{"--notify", address}, []string{"--lmcache-notify", "tcp://" + address}
	case "lmcache decode":
		return []string{"--alloc-port", port}, []string{"--lmcache-init-port", port, "--lmcache-alloc-port", port}
	}
	return nil, nil
}

func (n *Node) startAgent(ctx context.Context) error {
	s := n.Spec
	args := []string{
		"--role", string(s.Role), "--address", n.Address, "--model", s.Model, "--connector", s.Connector,
		"--etcd-endpoints", strings.Join(s.Etcd, ","),
	}
	if s.TTL > 0 {
		args = append(args, "--ttl", s.TTL.String())
	}
	_, connector := s.connectorArgs()
	var err error
	n.Agent, err = n.fleet.Start(ctx, Spec{Name: s.Name + "-agent", Program: "agent", Args: slices.Concat(args, connector, s.AgentArgs)})
	return err
}

// StartAgent starts an agent with the given etcd endpoints for an engine whose
// agent was never started or has ended.
func (n *Node) StartAgent(ctx context.Context, etcd ...string) error {
	n.Spec.Etcd = etcd
	return n.startAgent(ctx)
}

// Kill kills engine and agent with SIGKILL, as a power failure would.
func (n *Node) Kill() error {
	var errs []error
	if n.Agent != nil {
		errs = append(errs, n.Agent.Kill())
	}
	return errors.Join(append(errs, n.Engine.Kill())...)
}

// Get reads a URL and decodes its JSON answer into into, if that is not nil. A
// status other than 200 is an error.
func (f *Fleet) Get(ctx context.Context, url string, into any) error {
	status, raw, err := f.read(ctx, url)
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("GET %s: %d: %s", url, status, instance.Printable(string(raw), 300))
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	return nil
}

// read returns the status and the body of a URL; bodies are cut at 8 MiB.
func (f *Fleet) read(ctx context.Context, url string) (status int, raw []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := f.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return 0, nil, fmt.Errorf("GET %s: %w", url, err)
	}
	return res.StatusCode, raw, nil
}

// MemberSpec describes one member of an etcd cluster. The Spec of a Member that
// was killed starts it again, with its data.
type MemberSpec struct {
	Name    string
	Client  string   // host:port for clients
	Peer    string   // host:port for the other members
	Cluster string   // name=url of every member, separated by commas
	Args    []string // added to the command line
}

// Member is a running etcd member.
type Member struct {
	*Process
	Spec MemberSpec
}

// StartEtcd starts an etcd cluster of n members and waits until each of them
// serves clients. The members run program etcd of the BinDir, with more args.
func (f *Fleet) StartEtcd(ctx context.Context, n int, args ...string) ([]*Member, error) {
	ports, err := FreePorts(2 * n)
	if err != nil {
		return nil, err
	}
	specs := make([]MemberSpec, n)
	urls := make([]string, n)
	for i := range specs {
		specs[i] = MemberSpec{Name: fmt.Sprintf("etcd-%d", i+1), Client: loopback(ports[2*i]), Peer: loopback(ports[2*i+1]), Args: args}
		urls[i] = specs[i].Name + "=http://" + specs[i].Peer
	}
	members := make([]*Member, n)
	// Members become healthy together, once a quorum of them runs.
	group, ctx := errgroup.WithContext(ctx)
	for i, s := range specs {
		s.Cluster = strings.Join(urls, ",")
		group.Go(func() (err error) {
			members[i], err = f.StartMember(ctx, s)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return members, nil
}

// StartMember starts one member of an etcd cluster and waits until it is
// healthy, which requires a quorum. The arguments are those of
// docker-compose.yml, with loopback addresses.
func (f *Fleet) StartMember(ctx context.Context, s MemberSpec) (*Member, error) {
	client, peer := "http://"+s.Client, "http://"+s.Peer
	p, err := f.Start(ctx, Spec{
		Name: s.Name, Program: "etcd",
		Args: append([]string{
			"--name=" + s.Name, "--data-dir=" + filepath.Join(f.dir, s.Name),
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=" + s.Cluster, "--initial-cluster-token=pdmesh",
			"--auto-compaction-mode=periodic", "--auto-compaction-retention=5m",
		}, s.Args...),
		Ready: func(ctx context.Context) error { return f.Get(ctx, client+"/health?exclude=NOSPACE", nil) },
	})
	if err != nil {
		return nil, err
	}
	return &Member{Process: p, Spec: s}, nil
}

// Endpoints returns the client addresses of the members.
func Endpoints(members []*Member) []string {
	out := make([]string, len(members))
	for i, m := range members {
		out[i] = m.Spec.Client
	}
	return out
}
