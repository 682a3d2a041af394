package migrate_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// The commands of the change that added elastic scaling to vllm-ascend's load-balance proxy. Its curl
// lines have no key; ours need one.
const (
	balanceStart = `python load_balance_proxy_server_example.py \
--host 0.0.0.0 --port 9000 \
--prefiller-hosts 127.0.0.1 127.0.0.1 \
--prefiller-ports 8100 8101 \
--decoder-hosts 127.0.0.1 127.0.0.1 \
--decoder-ports 8200 8201 \
--max-waiting-retries 3 \
--waiting-retry-interval 10`
	balanceAdd = `curl -X POST http://localhost:9000/instances/add \
-H "Content-Type: application/json" \
-d '{
"type": "prefill",
"instances": ["127.0.0.1:8102", "127.0.0.1:8103"]
}'`
	balanceRemove = `curl -X POST http://localhost:9000/instances/remove \
-H "Content-Type: application/json" \
-d '{
"type": "decode",
"instances": "127.0.0.1:8201"
}'`
)

func withKey(line string) string {
	return strings.Replace(line, ` \`, ` -H "X-Api-Key: YOUR_ADMIN_API_KEY" \`, 1)
}

func balanceSite(t *testing.T) *site {
	s := newSite(t, fakevllm.NIXL, "9000")
	s.up(fakevllm.RolePrefill, "8100", "8101")
	s.up(fakevllm.RoleDecode, "8200", "8201")
	return s
}

func TestLoadBalanceProxy(t *testing.T) {
	t.Parallel()
	s := balanceSite(t)
	s.start(balanceStart, "ADMIN_API_KEY="+adminKey)
	s.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	completion := strings.ReplaceAll(elasticCompletion, "8000", "9000")
	chat := strings.ReplaceAll(elasticChat, "8000", "9000")
	for range 2 {
		s.serves(completion, "hello", 50)
		s.serves(chat, "hello", 50)
	}
	rec := s.record(instance.Decode, "8201")
	assert.True(t, rec.Source == "flags" && rec.Connector == "nixl", "record %+v", rec)
	testkit.Eventually(t, time.Minute, func() error { // a request ends after its client has the answer
		if _, body := s.curl("curl http://localhost:9000/healthcheck"); !strings.Contains(body, `"request_num":0`) {
			return errors.New(body)
		}
		return nil
	})
	s.answers("curl http://localhost:9000/healthcheck", 200,
		`{"status":"ok","prefill_instances":2,"decode_instances":2,"request_num":0}`)

	// The document's first response: both instances are running.
	s.up(fakevllm.RolePrefill, "8102", "8103")
	s.answers(withKey(balanceAdd), 200, `{"message": "add prefill instances: ['127.0.0.1:8102', '127.0.0.1:8103'].",
		"current_prefill_instances": ["127.0.0.1:8100", "127.0.0.1:8101", "127.0.0.1:8102", "127.0.0.1:8103"],
		"current_decode_instances": ["127.0.0.1:8200", "127.0.0.1:8201"]}`)
	s.answers(withKey(balanceRemove), 200, `{"message": "remove decode instances: ['127.0.0.1:8201'].",
		"current_prefill_instances": ["127.0.0.1:8100", "127.0.0.1:8101", "127.0.0.1:8102", "127.0.0.1:8103"],
		"current_decode_instances": ["127.0.0.1:8200"]}`)
	before := s.served("8201")
	for range 4 {
		s.serves(chat, "hello", 50)
	}
	assert.Equal(t, before, s.served("8201"), "the removed instance still serves")
	s.strict(true)
}

// The document's second response: one of the two instances is not running.
func TestLoadBalanceProxyWaits(t *testing.T) {
	t.Parallel()
	s := balanceSite(t)
	s.start(balanceStart, "ADMIN_API_KEY="+adminKey)
	s.await([]string{"8100", "8101"}, []string{"8200", "8201"})
	s.up(fakevllm.RolePrefill, "8102")
	s.reserve("8103")
	s.answers(withKey(balanceAdd), 200, `{"message": "add prefill instances: ['127.0.0.1:8102']. Instances ['127.0.0.1:8103'] are waiting to be added.",
		"current_prefill_instances": ["127.0.0.1:8100", "127.0.0.1:8101", "127.0.0.1:8102"],
		"current_decode_instances": ["127.0.0.1:8200", "127.0.0.1:8201"]}`)
	s.up(fakevllm.RolePrefill, "8103")
	s.await([]string{"8100", "8101", "8102", "8103"}, []string{"8200", "8201"})
}
