package docs_test

// row is the check of one block. world names the environment in which run_linux_test.go runs the block
// unchanged; by is the test or the step of .ci/run that runs it; why is the reason if none does.
type row struct {
	page, first string // first is the start of the block; after " … " comes a text inside the block
	world       string
	// command that runs after the block and must succeed
	then    string
	by, why string
}

const (
	picture    = "a picture or a format, no commands"
	docker     = "needs images of a registry or a release; make compose-test loads and starts the same files"
	hours      = "measures for minutes to hours, on a machine that does nothing else"
	installs   = "installs a release on the machine: make release-check does it on a clean Debian"
	otherTools = "commands of other projects; what they send is recorded in test/agents"
	gpuEngine  = "a command of vLLM alone"
	elsewhere  = "names machines of a real network; TestMigrationPages_Commands holds that the program takes it"
)

// ready1 and ready2 wait for a number of usable instances.
const ready1 = `instances 1`
const ready2 = `instances 2`

// inFleet is the environment for blocks that change an existing fleet.
const inFleet = "fleet"

var table = []row{
	{page: "README.md", first: "clients (OpenAI API)", why: picture},
	{page: "README.md", first: "make build", by: "test/real: TestFirstHour"},
	{page: "README.md", first: "curl -s http://127.0.0.1:8200/metrics", by: "test/real: TestFirstHour"},
	{page: "README.md", first: "kill $prefill $decode; wait $prefill $decode; kill $proxy; wait", by: "test/real: TestFirstHour"},
	{page: "README.md", first: "make demo", by: ".ci/run: make demo ONCE=1"},
	{page: "README.md", first: "make test", by: ".ci/run: make test-long"},

	{page: "CONTRIBUTING.md", first: "make test", by: ".ci/run: make test-long"},
	{page: "RELEASING.md", first: "for arch in", why: "pushes images to a public registry"},
	{page: "RELEASING.md", first: "go install", why: "loads what is published; scripts/check-go-install.sh does it with this tree"},

	{page: "docs/agent.md", first: "pdmesh-agent --role prefill --address 10.0.0.7:8100 --engine", world: "etcd and engines", then: ready1},
	{page: "docs/agent.md", first: "pdmesh-agent --etcd-endpoints 10.0.0.1:2379 -- vllm serve Qwen/Qwen2.5-7B-Instruct --host 10.0.0.7 --port 8100 \\", world: "etcd", then: ready1},
	{page: "docs/agent.md", first: "pdmesh-agent --role both", world: "etcd", then: ready2},

	{page: "docs/api.md", first: "POST /instances/add", why: picture},
	{page: "docs/api.md", first: "GET    /models/routes", why: picture},
	{page: "docs/architecture.md", first: "list  ", why: picture},
	{page: "docs/architecture.md", first: "net/http.Server", why: picture},
	{page: "docs/architecture.md", first: "etcd event", why: picture},

	{page: "docs/cli.md", first: "pdctl drain", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl allow", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl model route", by: "test/cli: TestEveryExample"},
	{page: "docs/models.md", first: "pdctl model route gpt-4o=Qwen2.5-72B ", world: inFleet, then: "pdctl model ls | grep canary"},
	{page: "docs/models.md", first: "pdctl model route qwen=80", world: inFleet, then: "pdctl model ls | grep qwen-next"},
	{page: "docs/cli.md", first: "pdctl list -o wide --selector", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl cordon prefill", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl wait --for", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl cordon decode", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl doctor", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "15:20:30 UTC", why: picture},
	{page: "docs/cli.md", first: "pdctl top", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl mooncake", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl history", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl debug", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl list --proxy", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl diff", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "pdctl export", by: "test/cli: TestEveryExample"},
	{page: "docs/cli.md", first: "source <(pdctl completion bash)", world: inFleet, then: "complete -p pdctl"},

	{page: "docs/clients.md", first: "make test-clients", by: "Makefile: test-clients:"},
	{page: "docs/clients.md", first: "cd test/clients/js && npm ci", by: ".ci/run: cd test/clients/js && npm ci"},
	{page: "docs/clients.md", first: "ANTHROPIC_BASE_URL", why: otherTools},
	{page: "docs/clients.md", first: `model = "m"`, why: picture},
	{page: "docs/clients.md", first: "codex exec", why: otherTools},
	{page: "docs/clients.md", first: "{", why: picture},

	{page: "docs/connectors/ascend.md", first: "# prefill", world: "etcd", then: ready2},
	{page: "docs/connectors/ascend.md", first: "pdmesh-agent --role", world: "etcd and engines", then: ready2},
	{page: "docs/connectors/lmcache.md", first: "# prefill", why: "needs LMCache's files of settings; TestConnectorPages_Commands holds that the agent takes it"},
	{page: "docs/connectors/lmcache.md", first: "pdmesh-agent --role", world: "etcd and engines", then: ready2},
	{page: "docs/connectors/lmcache.md", first: "pdctl add", world: inFleet},
	{page: "docs/connectors/lmcache.md", first: "pdmesh-proxy --connector", world: "engines"},
	{page: "docs/connectors/mooncake.md", first: "# prefill", world: "etcd", then: ready2},
	{page: "docs/connectors/mooncake.md", first: "pdmesh-agent --role", world: "etcd and mooncake", then: ready2},
	{page: "docs/connectors/mooncake.md", first: "pdctl add", why: "etcdctl is no program of ours; TestMooncakeWithoutAgents writes the same key"},
	{page: "docs/connectors/moriio.md", first: "pdmesh-proxy --zmq-register", by: "test/e2e: TestMoRIIOFleet"},
	{page: "docs/connectors/moriio.md", first: "# prefill", why: gpuEngine},
	{page: "docs/connectors/moriio.md", first: "pdmesh-agent --zmq-register", why: "the same bridge twice, at debug level; TestMoRIIOFleet runs it"},
	{page: "docs/connectors/nixl.md", first: "# prefill", world: "etcd", then: ready2},
	{page: "docs/connectors/nixl.md", first: "pdmesh-agent --role", world: "etcd and engines", then: ready2},
	{page: "docs/connectors/nixl.md", first: "pdmesh-proxy --connector nixl --version-groups", world: "engines"},
	{page: "docs/connectors/nixl.md", first: "pdmesh-proxy --connector nixl --rewrite", world: "engines"},
	{page: "docs/connectors/nixl_push.md", first: "# prefill", world: "etcd", then: ready2},
	{page: "docs/connectors/nixl_push.md", first: "pdmesh-agent --role", world: "etcd and engines", then: ready2},
	{page: "docs/connectors/p2p.md", first: "# prefill", world: "etcd", then: ready2},
	{page: "docs/connectors/p2p.md", first: "pdmesh-agent --role", world: "etcd and engines", then: ready2},
	{page: "docs/connectors/plain.md", first: "# prefill", world: "etcd", then: ready2},

	{page: "docs/deploy.md", first: "bin/pdmesh-proxy --connector nixl", world: "engines", then: ready2},
	{page: "docs/deploy.md", first: "pdmesh-proxy --host 0.0.0.0 --etcd-endpoints", world: "etcd and engines", then: ready1},
	{page: "docs/deploy.md", first: "scripts/register-node.sh", world: "fleet without agents", then: ready1},
	{page: "docs/deploy.md", first: "pdmesh-proxy --prefill 127.0.0.1:8100 127.0.0.1:8101", world: "engines", then: `instances 3`},
	{page: "docs/deploy.md", first: "tar -xzf", why: installs},
	{page: "docs/deploy.md", first: "apt install", why: installs},
	{page: "docs/deploy.md", first: "docker load", why: docker},
	{page: "docs/deploy.md", first: "docker compose up", by: "test/deploy: TestContainers"},
	{page: "docs/deploy.md", first: "docker compose --profile", why: docker},
	{page: "docs/deploy.md", first: "make demo PROXIES=2 ETCD=3 KEEP=1", by: "test/e2e: TestDemoKept"},
	{page: "docs/deploy.md", first: "install -m 755", why: "changes the machine's systemd; test/deploy verifies the units, make release-check starts them"},
	{page: "docs/kv-events.md", first: "vllm serve", why: gpuEngine},
	{page: "docs/kv-events.md", first: "pdmesh-agent --role prefill --etcd-endpoints 127.0.0.1", world: "etcd", then: ready1},

	{page: "docs/roles.md", first: "pdctl ratio", by: "test/cli: TestEveryExample"},
	{page: "docs/roles.md", first: "n=$(pdctl ratio", world: inFleet, then: "PD_ETCD_ENDPOINTS=127.0.0.1:1 sh ./block.sh; [ ! -e ssh.log ]"},
	{page: "docs/roles.md", first: "pdctl role decode", by: "test/cli: TestEveryExample"},
	{page: "docs/limits.md", first: "pdctl limit set", by: "test/cli: TestEveryExample"},
	{page: "docs/limits.md", first: "pdctl usage", by: "test/cli: TestEveryExample"},

	{page: "docs/migrate/demo-and-elastic-proxy.md", first: "# before", by: "test/migrate: TestDisaggProxyDemo"},
	{page: "docs/migrate/load-balance-proxy.md", first: "# before", by: "test/migrate: TestLoadBalanceProxy"},
	{page: "docs/migrate/lmcache-disagg-proxy.md", first: "# before", by: "test/migrate: TestLMCacheSeveralHosts"},
	{page: "docs/migrate/mooncake-proxy-server.md", first: "# before", by: "test/migrate: TestMooncakeProxyServer"},
	{page: "docs/migrate/moriio-toy-proxy.md", first: "pdmesh-proxy --host 0.0.0.0 --port 10001 --zmq-register 'tcp://*:36367' --instance-allow", world: "engines"},
	{page: "docs/migrate/moriio-toy-proxy.md", first: "pdmesh-proxy --host 0.0.0.0 --port 10001 --zmq-register 'tcp://*:36367'", world: "engines"},

	{page: "docs/migrate/mooncake-proxy-server.md", first: "pdmesh-proxy --host 0.0.0.0 --port 8000", why: elsewhere},
	{page: "docs/migrate/vllm-connector-proxies.md", first: "# before … toy_proxy_server.py", why: elsewhere},
	{page: "docs/migrate/vllm-connector-proxies.md", first: "pdmesh-proxy --port 8192 --connector nixl", why: elsewhere},
	{page: "docs/migrate/vllm-connector-proxies.md", first: "# before … mooncake_connector_proxy.py", why: elsewhere},
	{page: "docs/migrate/vllm-connector-proxies.md", first: "pdmesh-agent --role prefill", why: elsewhere},

	{page: "docs/move-etcd.md", first: "pdctl export", by: "test/e2e: TestMoveByExport"},
	{page: "docs/move-etcd.md", first: "pdmesh-agent --print-config", world: "engines", then: `(sed "s/ --allow-loopback//" block.sh | bash 2>&1 || :) | grep "is a loopback address"`},
	{page: "docs/move-etcd.md", first: "etcdctl", by: "test/e2e: TestMoveBySnapshot"},
	{page: "docs/move-etcd.md", first: "etcdutl", by: "test/e2e: TestMoveBySnapshot"},

	{page: "docs/observe.md", first: "docker compose", why: docker},
	{page: "docs/observe.md", first: "pdmesh-proxy --otlp-endpoint", world: "engines"},
	{page: "docs/observe.md", first: "curl -X PUT", world: inFleet},

	{page: "docs/kubernetes.md", first: "kubectl create", why: "needs a cluster; tools/kubernetes and test/deploy check the files"},

	{page: "docs/picking.md", first: "pdctl weight", world: inFleet},
	{page: "docs/real.md", first: "make test-real", why: "real vLLM: minutes, 3.3 GB; CI_REAL=1 bash .ci/run runs the short form"},
	{page: "docs/scale.md", first: "make scale", why: hours},
	{page: "docs/scheduling.md", first: "make fleet-bench", why: hours},
	{page: "docs/scheduling.md", first: "make fleet-disaggregate", why: hours},
	{page: "docs/scheduling.md", first: "make fleet-real", why: "real engines, for an hour (docs/real.md)"},

	{page: "docs/tls.md", first: "openssl", world: inFleet, then: "openssl verify -CAfile ca.pem proxy.pem"},
	{page: "docs/tls.md", first: "pdmesh-proxy --tls-cert", world: "certificates"},
	{page: "docs/tls.md", first: "etcd --listen-client-urls", world: "certificates"},
	{page: "docs/tls.md", first: "pdmesh-proxy --etcd-listen", by: "test/e2e: TestEmbeddedEtcd_RemoteClients"},
	{page: "docs/tls.md", first: "pdctl auth init", world: inFleet},
	{page: "docs/tls.md", first: "# key", why: picture},

	{page: "bench/README.md", first: "make bench", why: hours},
	{page: "bench/README.md", first: "core 1", why: picture},
	{page: "bench/README.md", first: "bin/bench run", why: hours},
	{page: "docs/overload.md", first: "curl -s", world: inFleet},
	{page: "docs/overload.md", first: "make fleet-overload-model", why: hours},
	{page: "docs/performance/README.md", first: "make bench", why: hours},
}
