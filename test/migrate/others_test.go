package migrate_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/test/harness"
)

var errStillThere = errors.New("it is still there")

const demoStart = `python3 examples/online_serving/disaggregated_serving/disagg_proxy_demo.py  \
       --model $model_name  \
       --prefill localhost:8100 localhost:8101   \
       --decode localhost:8200 localhost:8201   \
       --port 8000`

// vLLM's demo reads its keys from the environment: one for the engines, one for requests that change the
// fleet.
func TestDisaggProxyDemo(t *testing.T) {
	t.Parallel()
	s := newSite(t, fakevllm.Plain, "8000")
	for role, ports := range map[fakevllm.Role][]string{fakevllm.RolePrefill: {"8100", "8101", "8102"}, fakevllm.RoleDecode: {"8200", "8201"}} {
		for _, p := range ports {
			o := s.engine(role, "")
			o.APIKey = "engine-key"
			s.upWith(p, o)
		}
	}
	s.vars["model_name"] = "somewhere/else/simulated" // only the last part matters, as in the demo
	s.start(demoStart, "OPENAI_API_KEY=engine-key", "ADMIN_API_KEY="+adminKey)
	s.vars["model_name"] = s.model
	s.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	for range 2 {
		s.serves(elasticCompletion, "hello", 50)
		s.serves(elasticChat, "hello", 50)
	}
	s.answers("curl http://127.0.0.1:8000/status", 200,
		`{"prefill_node_count":2,"decode_node_count":2,"prefill_nodes":["127.0.0.1:8100","127.0.0.1:8101"],"decode_nodes":["127.0.0.1:8200","127.0.0.1:8201"]}`,
		"instances", "notices", "queues", "model_routes", "load_digests", "prompts", "revision", "etcd", "id", "version", "limits")
	s.answers(at(elasticAdd, "8102"), 200, `{"message":"Added 127.0.0.1:8102 to prefill_instances."}`, lists...)
	code, body := s.curl(strings.Replace(elasticCompletion, "application/json", "text/plain", 1))
	assert.Equal(t, 400, code, "text/plain: %s", body)
	s.strict(true)
}

// Mooncake's first proxy has its two instances hard-coded.
const (
	mooncakeStart = "python3 proxy_server.py --prefill localhost:8100 --decode localhost:8200 --port 8000"
	mooncakeAsk   = `curl -s http://localhost:8000/v1/completions -H "Content-Type: application/json" -d '{
"model": "Qwen/Qwen2.5-7B-Instruct",
"prompt": "San Francisco is a",
"max_tokens": 1000,
"temperature": 0
}'`
)

// The engines of its document serve a model name other than that of its curl line.
func TestMooncakeProxyServer(t *testing.T) {
	t.Parallel()
	s := newSite(t, fakevllm.Plain, "8000")
	const served = "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4"
	s.model = served
	s.up(fakevllm.RolePrefill, "8100")
	s.up(fakevllm.RoleDecode, "8200")
	s.start(mooncakeStart)
	s.await([]string{"8100"}, []string{"8200"})
	s.answers(mooncakeAsk, 404, `{"error":{"message":"The model `+"`Qwen/Qwen2.5-7B-Instruct`"+` does not exist. Valid aliases: `+served+`.","type":"NotFoundError","param":"model","code":404}}`)
	s.serves(strings.Replace(mooncakeAsk, "Qwen/Qwen2.5-7B-Instruct", served, 1), "San Francisco is a", 1000)
	s.strict(true)
}

// The instances of the command line are applied at every start, and no others are changed.
func TestFlagsAtTheNextStart(t *testing.T) {
	t.Parallel()
	s := elasticSite(t)
	s.up(fakevllm.RoleDecode, "8202")
	p := s.start(elasticStart, "ADMIN_API_KEY="+adminKey)
	s.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	s.answers(strings.Replace(at(elasticAdd, "8202"), "prefill", "decode", 1), 200,
		`{"message":"Added 127.0.0.1:8202 to decode_instances."}`, lists...)
	s.answers(at(elasticRemove, "8101"), 200, `{"message":"Removed 127.0.0.1:8101 from prefill_instances."}`, lists...)
	s.stop(p)

	// The same line again: a removed instance stays removed, and the log reports it.
	p = s.start(elasticStart, "ADMIN_API_KEY="+adminKey)
	s.await([]string{"8100"}, []string{"8200", "8201", "8202"})
	awaitLog(t, p, s.text("127.0.0.1:8101 of the command line stays out"), s.text("pdctl add prefill 127.0.0.1:8101"))
	s.stop(p)

	// A shorter line in another form: instances that it no longer lists are removed, added ones remain.
	p = s.start("python x.py --port 8000 --prefiller-ports 8100 --decoder-ports 8201", "ADMIN_API_KEY="+adminKey)
	s.await([]string{"8100"}, []string{"8201", "8202"})
	awaitLog(t, p, s.text("decode/127.0.0.1:8200 was on an earlier command line"))
	testkit.Eventually(t, soon, func() error {
		if rec := s.record(instance.Prefill, "8100"); rec.Connector != "nixl" {
			return fmt.Errorf("the record does not follow the command line: %+v", rec)
		}
		return nil
	})
	if rec := s.record(instance.Decode, "8202"); rec.Source != "admin" {
		t.Errorf("record of the added instance: %+v", rec)
	}
	s.stop(p)

	// A line without instances changes none.
	p = s.start("python x.py --port 8000", "ADMIN_API_KEY="+adminKey)
	s.await([]string{"8100"}, []string{"8201", "8202"})
	s.answers(at(elasticAdd, "8101"), 200, `{"message":"Added 127.0.0.1:8101 to prefill_instances."}`, lists...)
	s.await([]string{"8100", "8101"}, []string{"8201", "8202"})
	s.stop(p)
}

func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	s := &site{t: t, vars: map[string]string{"model_name": harness.Model}}
	s.refuse(elasticStart+" --prefiller-hosts localhost --prefiller-ports 8100", "--prefill is from", "--prefiller-hosts from", "See pdmesh-proxy --help.")
	s.refuse("x.py --unknown-flag 1", "unknown flag")
	if _, err := os.Stat("etcd"); err == nil {
		t.Error("a refused start wrote files")
	}
}
