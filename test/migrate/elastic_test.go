package migrate_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The commands of vllm-ascend's documentation of elastic_proxy.
const (
	elasticStart = `python3 examples/elastic_scaling/elastic_proxy.py  \
   --model $model_name  \
   --prefill localhost:8100 localhost:8101   \
   --decode localhost:8200 localhost:8201   \
   --port 8000`
	elasticCompletion = `curl -X POST http://0.0.0.0:8000/v1/completions \
-H "Content-Type: application/json" \
-d '{"model": "'$model_name'", "max_tokens": 50, "prompt": "hello"}'`
	elasticChat = `curl -X POST http://0.0.0.0:8000/v1/chat/completions \
-H "Content-Type: application/json" \
-d '{"model": "'$model_name'", "max_tokens": 50,
    "messages": [{
        "role": "user",
        "content": "hello"
    }]}'`
	elasticStatus = `curl -X POST http://0.0.0.0:8000/status`
	elasticAdd    = `curl -X POST http://0.0.0.0:8000/instances/add \
-H "Content-Type: application/json" \
-H "X-Api-Key: YOUR_ADMIN_API_KEY" \
-d '{"type": "prefill", "instance": "0.0.0.0:8100"}'`
	elasticRemove = `curl -X POST http://0.0.0.0:8000/instances/remove \
-H "Content-Type: application/json" \
-H "X-Api-Key: YOUR_ADMIN_API_KEY" \
-d '{"type": "prefill", "instance": "0.0.0.0:8100"}'`
)

// at replaces the instance in a curl line of the document.
func at(line, port string) string {
	return strings.ReplaceAll(line, "0.0.0.0:8100", "127.0.0.1:"+port)
}

func elasticSite(t *testing.T) *site {
	s := newSite(t, fakevllm.Plain, "8000")
	s.up(fakevllm.RolePrefill, "8100", "8101")
	s.up(fakevllm.RoleDecode, "8200", "8201")
	return s
}

func TestElasticProxy(t *testing.T) {
	t.Parallel()
	s := elasticSite(t)
	s.start(elasticStart, "ADMIN_API_KEY="+adminKey)
	s.await([]string{"8100", "8101"}, []string{"8200", "8201"})

	for range 2 {
		s.serves(elasticCompletion, "hello", 50)
		s.serves(elasticChat, "hello", 50)
	}
	for _, port := range []string{"8100", "8101", "8200", "8201"} {
		assert.True(t, s.served(port) != 0, "the instance of port %s served nothing", port)
	}
	const printed = `{"prefill_node_count":2,"decode_node_count":2,"prefill_nodes":["127.0.0.1:8100","127.0.0.1:8101"],"decode_nodes":["127.0.0.1:8200","127.0.0.1:8201"]}`
	s.answers(elasticStatus, 200, printed, "instances", "notices", "queues", "model_routes", "load_digests", "prompts", "revision", "etcd", "id", "version", "limits")
	// The first bytes are the same, for scripts that cut text.
	if _, body := s.curl(elasticStatus); !strings.HasPrefix(body, `{"prefill_node_count":2,"decode_node_count":2,"prefill_nodes":["127.0.0.1:`) {
		t.Errorf("/status: %s", body)
	}
	for _, port := range []string{"8100", "8101"} {
		rec := s.record(instance.Prefill, port)
		assert.True(t, rec.Source == "flags" && rec.Connector == "plain", "record %+v", rec)
	}

	s.reserve("8102")
	s.answers(at(elasticAdd, "8102"), 200, `{"message":"Waiting for prefill_instance 127.0.0.1:8102 to start."}`, lists...)
	s.up(fakevllm.RolePrefill, "8102")
	s.await([]string{"8100", "8101", "8102"}, []string{"8200", "8201"})
	s.answers(at(elasticAdd, "8102"), 200, `{"message":"Added 127.0.0.1:8102 to prefill_instances."}`, lists...)
	s.up(fakevllm.RolePrefill, "8103")
	s.answers(at(elasticAdd, "8103"), 200, `{"message":"Added 127.0.0.1:8103 to prefill_instances."}`, lists...)
	s.await([]string{"8100", "8101", "8102", "8103"}, []string{"8200", "8201"})

	s.answers(at(elasticRemove, "8100"), 200, `{"message":"Removed 127.0.0.1:8100 from prefill_instances."}`, lists...)
	s.await([]string{"8101", "8102", "8103"}, []string{"8200", "8201"})
	before := s.served("8100")
	for range 6 {
		s.serves(elasticChat, "hello", 50)
	}
	assert.Equal(t, before, s.served("8100"), "the removed instance still serves")
	// With the document's message, and with a status that a script can check.
	s.answers(at(elasticRemove, "8999"), 404, `{"message":"Instance 127.0.0.1:8999 is not in the prefill_instances."}`, "error")
	s.answers(at(elasticAdd, "8100"), 200, `{"message":"Added 127.0.0.1:8100 to prefill_instances."}`, lists...)
	s.model = "another/model"
	s.up(fakevllm.RolePrefill, "8104")
	if code, body := s.curl(at(elasticAdd, "8104")); code != 400 || !strings.HasPrefix(body, `{"detail":"Instance validation failed.`) {
		t.Errorf("an instance of another model: %d %s", code, body)
	}
	s.strict(true)
}

// The limits of elastic_proxy: the proxy gives up waiting for an instance that never starts.
func TestElasticProxyChecks(t *testing.T) {
	t.Parallel()
	s := elasticSite(t)
	s.start(elasticStart+" --check-interval 0.5 --check-times 20 --retry-times 7", "ADMIN_API_KEY="+adminKey)
	s.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	if l := s.status().Limits; l["max_failures"] != 7.0 || l["waiting_retry_interval"] != "500ms" || l["max_waiting_retries"] != 20.0 {
		t.Errorf("limits %v", l)
	}
	s.reserve("8102")
	s.answers(at(elasticAdd, "8102"), 200, `{"message":"Waiting for prefill_instance 127.0.0.1:8102 to start."}`, lists...)
	if st := s.status(); len(st.Instances) != 5 {
		t.Errorf("the pending instance is not shown: %+v", st.Instances)
	}
	testkit.Eventually(t, soon, func() error {
		if st := s.status(); len(st.Instances) != 4 {
			return errStillThere
		}
		return nil
	})
}
