package cli_test

import (
	"net"
	"os"
	"path/filepath"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/fakevllm"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// examples describes how each line is run.
var examples = map[string]example{
	"pdctl add prefill 10.0.0.7:8100 10.0.0.8:8100": {spare: true, want: []string{"prefill/10.0.0.7:8100: added, serves " + modelName, "prefill/10.0.0.8:8100: added"}},
	"pdctl add prefill 10.0.0.7:8100":               {spare: true, want: []string{"prefill/10.0.0.7:8100: added, serves " + modelName}, after: has("/pd/prefill/10.0.0.7:8100")},
	"pdctl add decode 10.0.0.8:8200 10.0.0.9:8200 --model Qwen/Qwen2.5-7B-Instruct": {
		spare: true, want: []string{"decode/10.0.0.8:8200: added", "decode/10.0.0.9:8200: added"},
	},
	`pdctl add decode [fd00::7]:8200 --connector nixl --reason "third rack"`: {spare: true, want: []string{"decode/[fd00::7]:8200: added"}, after: has("/pd/decode/[fd00::7]:8200")},
	"pdctl add both 10.0.0.6:8100 --connector nixl":                          {spare: true, want: []string{"prefill/10.0.0.6:8100: added", "decode/10.0.0.6:8100: added"}},
	"pdctl add decode 10.0.0.8:8200 --dp-size 4":                             {spare: true, want: []string{"10.0.0.8:8200"}},
	"pdctl add decode 10.0.0.8:8200 --connector lmcache --lmcache-init-port 7300 --lmcache-alloc-port 7400": {
		spare: true, want: []string{"decode/10.0.0.8:8200: added"}, after: has("/pd/decode/10.0.0.8:8200"),
	},
	"pdctl add prefill 10.0.0.7:8100 --wait": {late: true, want: []string{"Waiting for prefill/10.0.0.7:8100: ", "refused"}, after: has("/pd/pending/prefill/10.0.0.7:8100")},
	"pdctl add prefill 10.0.0.7:8100 --wait=10m --block": {
		late: true, want: []string{"(for 10m0s)", "prefill/10.0.0.7:8100: added"}, after: has("/pd/prefill/10.0.0.7:8100"),
		during: func(s *stage, c *typed) {
			c.sees(s.t, "Waiting for prefill/")
			fakevllm.StartTest(s.t, fakevllm.Options{Addr: s.here("10.0.0.7:8100"), Role: fakevllm.RolePrefill, Mode: fakevllm.NIXL, Models: []string{modelName}, Version: "0.32.0"})
		},
	},

	"pdctl remove prefill 10.0.0.7:8100": {
		spare: true, before: []string{"pdctl add prefill 10.0.0.7:8100"}, want: []string{"prefill/10.0.0.7:8100: removed"}, after: has("/pd/override/prefill/10.0.0.7:8100"),
	},
	`pdctl remove prefill 10.0.0.7:8100 --reason "new disks"`: {
		spare: true, before: []string{"pdctl add prefill 10.0.0.7:8100"}, want: []string{"prefill/10.0.0.7:8100: removed"},
	},
	`pdctl remove decode 10.0.0.8:8200 10.0.0.9:8200 --reason "new disks"`: {
		spare: true, before: []string{"pdctl add decode 10.0.0.8:8200 10.0.0.9:8200"}, want: []string{"decode/10.0.0.8:8200: removed", "decode/10.0.0.9:8200: removed"},
	},
	// The agents register their instances again; the reset waits for that.
	`pdctl allow decode 10.0.0.8:8200 10.0.0.9:8200 --reason "disks replaced"`: {
		before: []string{"pdctl remove decode 10.0.0.8:8200 10.0.0.9:8200"}, want: []string{"decode/10.0.0.8:8200: allowed", "decode/10.0.0.9:8200: allowed"},
	},
	`pdctl allow $(pdctl list -o json | jq -r '.removed[] | .role + "/" + .address')`: {
		before: []string{"pdctl remove decode 10.0.0.8:8200 10.0.0.9:8200"}, want: []string{"decode/10.0.0.8:8200: allowed", "decode/10.0.0.9:8200: allowed"},
	},

	"pdctl drain decode 10.0.0.8:8200 --wait":                                   {want: []string{"decode/10.0.0.8:8200: idle"}},
	`pdctl drain decode 10.0.0.8:8200 --wait --timeout 5m --reason "new disks"`: {want: []string{"decode/10.0.0.8:8200: drained", "decode/10.0.0.8:8200: idle"}},
	"pdctl drain both 10.0.0.6:8100":                                            {want: []string{"both/10.0.0.6:8100: drained"}},
	"pdctl drain prefill 10.0.0.7:8100 10.0.0.8:8100 --for 30m":                 {want: []string{"prefill/10.0.0.7:8100: drained for 30m0s", "prefill/10.0.0.8:8100: drained for 30m0s"}},
	"pdctl undrain decode 10.0.0.8:8200":                                        {before: []string{"pdctl drain decode 10.0.0.8:8200"}, want: []string{"decode/10.0.0.8:8200: undrained"}},
	`pdctl undrain decode 10.0.0.8:8200 --reason "disks replaced"`:              {before: []string{"pdctl drain decode 10.0.0.8:8200"}, want: []string{"decode/10.0.0.8:8200: undrained"}},
	"pdctl undrain both 10.0.0.6:8100":                                          {before: []string{"pdctl drain both 10.0.0.6:8100"}, want: []string{"both/10.0.0.6:8100: undrained"}},
	`pdctl cordon decode 10.0.0.8:8200 --reason "slow disk"`:                    {want: []string{"decode/10.0.0.8:8200: cordoned"}},
	"pdctl cordon prefill 10.0.0.7:8100 --for 1h":                               {want: []string{"prefill/10.0.0.7:8100: cordoned for 1h0m0s"}},
	`pdctl cordon prefill 10.0.0.7:8100 --for 1h --reason "slow disk"`:          {want: []string{"prefill/10.0.0.7:8100: cordoned for 1h0m0s"}},
	"pdctl cordon decode 10.0.0.9:8200 -o json":                                 {want: []string{`"outcome": "cordoned"`, `"revision": `}},
	"pdctl uncordon decode 10.0.0.8:8200 10.0.0.9:8200":                         {before: []string{"pdctl cordon decode 10.0.0.8:8200 10.0.0.9:8200"}, want: []string{"decode/10.0.0.8:8200: uncordoned", "decode/10.0.0.9:8200: uncordoned"}},
	"pdctl uncordon prefill 10.0.0.7:8100":                                      {before: []string{"pdctl cordon prefill 10.0.0.7:8100"}, want: []string{"prefill/10.0.0.7:8100: uncordoned"}},
	`pdctl weight decode 10.0.0.8:8200 300 --reason "more memory"`:              {want: []string{"decode/10.0.0.8:8200: weight 300"}},
	"pdctl weight decode 10.0.0.8:8200 300":                                     {want: []string{"decode/10.0.0.8:8200: weight 300"}},
	"pdctl weight prefill 10.0.0.7:8100 10.0.0.8:8100 0 --for 1h":               {want: []string{"prefill/10.0.0.7:8100: weight 0 for 1h0m0s", "prefill/10.0.0.8:8100: weight 0 for 1h0m0s"}},
	"pdctl weight both 10.0.0.6:8100 50 --for 30m":                              {want: []string{"both/10.0.0.6:8100: weight 50 for 30m0s"}},
	"pdctl weight decode 10.0.0.8:8200 default":                                 {before: []string{"pdctl weight decode 10.0.0.8:8200 300"}, want: []string{"decode/10.0.0.8:8200: weight override removed"}},
	"pdctl wait --for state=ready prefill=2 decode=3":                           {want: []string{"decode/10.0.0.8:8200: ready"}},
	"pdctl wait --for state=ready --count 2":                                    {want: []string{"decode/10.0.0.8:8200: ready"}},
	"pdctl wait --for state=ready decode --selector rack=3 --timeout 10m":       {want: []string{"decode/10.0.0.8:8200: ready", "decode/10.0.0.9:8200: ready"}},
	"pdctl wait --for state=drained decode/10.0.0.8:8200":                       {before: []string{"pdctl drain decode/10.0.0.8:8200"}, want: []string{"decode/10.0.0.8:8200: drained"}},
	"pdctl wait --for state=removed prefill/10.0.0.7:8100":                      {before: []string{"pdctl remove prefill/10.0.0.7:8100"}, want: []string{"prefill/10.0.0.7:8100: removed"}},
	"pdctl version":                                                               {want: []string{"pdctl 0.", "proxy 10.0.0.1:8000 0."}},
	"pdctl version -o json":                                                       {want: []string{`"pdctl": "0.`, `"address": "10.0.0.1:8000"`}},
	"pdctl wait --revision 4711":                                                  {want: []string{"applied by 1 proxy"}},
	"pdctl wait --revision 4711 --timeout 30s":                                    {want: []string{"applied by 1 proxy"}},
	"pdctl wait --revision $(pdctl status -o json | jq .revision)":                {want: []string{"applied by 1 proxy"}},
	"pdctl model route gpt-4o=Qwen2.5-72B":                                        {want: []string{"models/gpt-4o: set", "no instance of target Qwen2.5-72B can be used now"}, after: has("/pd/models/gpt-4o")},
	`pdctl model route gpt-4o=Qwen2.5-72B --reason "clients with a fixed name"`:   {want: []string{"models/gpt-4o: set"}},
	"pdctl model route chat=70:new,30:old --sticky session":                       {want: []string{"models/chat: set"}},
	"pdctl model route 'qwen=90:qwen{tier=stable},10:qwen{tier=canary}' --for 1h": {want: []string{"models/qwen: set for 1h0m0s"}},
	"pdctl model route qwen=80:qwen,20:qwen-next --dry-run":                       {want: []string{"models/qwen: would be: set", "put     /pd/models/qwen"}},
	"pdctl model ls":         {before: []string{"pdctl model route chat=70:new,30:old"}, want: []string{"chat", "new", "70", "session"}},
	"pdctl model ls -o json": {before: []string{"pdctl model route chat=70:new,30:old"}, want: []string{`"target": "new"`, `"weight": 70`}},
	`pdctl model rm chat --reason "all clients use new"`:                                                {before: []string{"pdctl model route chat=70:new,30:old"}, want: []string{"models/chat: removed"}},
	`pdctl limit set team-a --rpm 600 --uncached-tpm 200000 --concurrent 50 --reason "trial until May"`: {want: []string{"team-a: set"}, after: has("/pd/limits/team-a")},
	"pdctl limit set default --rpm 60 --reason trial --dry-run":                                         {want: []string{"default: would be: set", "put     /pd/limits/default"}},
	"pdctl limit list":         {before: []string{"pdctl limit set team-a --rpm 600"}, want: []string{"team-a", "600"}},
	"pdctl limit list -o json": {before: []string{"pdctl limit set team-a --rpm 600"}, want: []string{`"rpm": 600`}},
	"pdctl limit rm team-a":    {before: []string{"pdctl limit set team-a --rpm 600"}, want: []string{"team-a: removed"}},
	`pdctl role decode 10.0.0.6:8100 --reason "long answers at night" --wait`: {want: []string{"decode/10.0.0.6:8100: decode only"}, after: has("/pd/override/prefill/10.0.0.6:8100")},
	"pdctl role prefill 10.0.0.6:8100 --for 2h":                               {want: []string{"prefill/10.0.0.6:8100: prefill only for 2h0m0s"}},
	"pdctl role both 10.0.0.6:8100":                                           {before: []string{"pdctl role decode 10.0.0.6:8100"}, want: []string{"both/10.0.0.6:8100: in both roles"}},
	"pdctl ratio":                                                             {want: []string{"MODEL", "too few requests were measured"}},
	"pdctl ratio -o json | jq '.roles[] | select(.pressure > 1)'":             {},
	"pdctl usage": {want: []string{"KEY", "REFUSED"}},
	"pdctl usage --proxy http://10.0.0.1:8000 -o json":                           {want: []string{`"proxies": 1`}},
	"pdctl wait --revision $(pdctl status -o json | jq .revision) --timeout 30s": {want: []string{"applied by 1 proxy"}},

	"pdctl list": {want: []string{"prefill  10.0.0.7:8100", "decode   10.0.0.8:8200", "leased", modelName}},
	"pdctl list -o wide --selector state=ready --selector rack=3": {want: []string{"decode  10.0.0.8:8200", "decode  10.0.0.9:8200", "LABELS", "rack=3", "0.32.0"}},
	"pdctl drain decode --selector rack=3 --dry-run": {
		want: []string{"decode/10.0.0.8:8200: would be: drained", "Dry run: nothing is written.", "at revision ", "if      /pd/override/decode/10.0.0.9:8200 does not exist", "put     /pd/override/decode/10.0.0.9:8200"},
	},
	`pdctl drain decode --selector rack=3 --reason "the rack's power" -o yaml`: {want: []string{"results:", "  - role: decode", "    address: 10.0.0.8:8200", "    outcome: drained"}},
	"pdctl list decode --sort-by in-flight":                                    {want: []string{"decode  10.0.0.8:8200", "decode  10.0.0.6:8100"}},
	"pdctl list decode -o json | jq '.instances[].address'":                    {want: []string{`"10.0.0.8:8200"`, `"10.0.0.9:8200"`}},
	"pdctl list -o json | jq '.instances[] | select(.status == \"down\")'":     {set: down, want: []string{`"address": "127.0.0.1:9"`}},
	"pdctl get prefill/10.0.0.7:8100":                                          {want: []string{"key       /pd/prefill/10.0.0.7:8100", modelName, "of 30 s left", "10.0.0.1:8000"}},
	"pdctl get decode 10.0.0.8:8200 -o json":                                   {want: []string{`"key": "/pd/decode/10.0.0.8:8200"`, `"proxies"`, `"history"`}},
	"pdctl list --proxy http://10.0.0.1:8000":                                  {want: []string{"prefill  10.0.0.7:8100", "from proxy "}},
	"pdctl status --proxy http://10.0.0.1:8000":                                {want: []string{"etcd: live", "3 ready"}},
	"pdctl get 10.0.0.7:8100 --proxy http://10.0.0.1:8000":                     {want: []string{"STATE        ready"}},
	"pdctl status":                                          {want: []string{"leader", "alarms: none", "3 ready", "10.0.0.1:8000"}},
	"pdctl status -o json | jq .proxies":                    {want: []string{`"address": "10.0.0.1:8000"`, `"applied"`}},
	"pdctl history":                                         {before: []string{"pdctl cordon decode 10.0.0.9:8200"}, want: []string{"cordon", "decode/10.0.0.9:8200", "registered: ready"}},
	"pdctl history --since 2h":                              {before: []string{"pdctl cordon decode 10.0.0.9:8200"}, want: []string{"cordon", "decode/10.0.0.9:8200"}},
	"pdctl history decode 10.0.0.8:8200 --limit 20":         {want: []string{"registered: ready", "decode/10.0.0.8:8200"}},
	"pdctl history decode 10.0.0.8:8200 -o json":            {want: []string{`"what": "registered: ready"`, `"remembered_since"`}},
	"pdctl history -o json | jq '.events[] | select(.who)'": {before: []string{"pdctl drain decode 10.0.0.9:8200"}, want: []string{`"address": "10.0.0.9:8200"`}},
	"pdctl top":                               {code: 2, want: []string{"top needs a terminal"}}, // TestTopInTerminal runs it in one
	"pdctl top --once --sort-by in-flight":    {want: []string{"prefill 3/3 serving  decode 3/3 serving", "10.0.0.1:8000", "10.0.0.8:8200  ready"}},
	"pdctl top --once --selector role=decode": {want: []string{"10.0.0.8:8200  ready"}},
	"pdctl top -o json | jq '.instances[] | {address, in_flight, ttft_p50_seconds}'": {want: []string{`"address": "10.0.0.7:8100"`, `"in_flight": 0`}},
	"pdctl doctor":                      {want: []string{"Nothing is wrong."}},
	"pdctl doctor --probe --timeout 3s": {want: []string{"Nothing is wrong."}},
	"pdctl doctor -o json | jq '.findings[] | select(.severity == \"error\")'": {set: down, code: 5, want: []string{`"check": "engine"`, `"subject": "decode/127.0.0.1:9"`, "1 error"}},

	"pdctl watch": {want: []string{"decode/10.0.0.9:8200  cordoned  intent - -> cordon"}, during: func(s *stage, c *typed) {
		c.sees(s.t, "Watching 6 instances")
		s.put(s.here("/pd/override/decode/10.0.0.9:8200"), `{"v":1,"state":"cordon"}`)
		c.sees(s.t, "intent - -> cordon")
		s.interrupt()
	}},
	"pdctl watch --initial -o json | jq -c 'select(.status == \"down\")'": {
		set: down, during: watched("Watching 7 instances"), want: []string{`"address":"127.0.0.1:9"`, `"change":"present"`},
	},
	"pdctl events prefill 10.0.0.7:8100": {during: func(s *stage, c *typed) {
		c.sees(s.t, "Listening for KV cache events on topic: kv-events")
		s.interrupt()
	}},
	"pdctl events prefill 10.0.0.7:8100 --past --count 1": {set: (*stage).fillCache, want: []string{"Received event batch at", "BlockStored("}},

	`pdctl route --prompt "What is a tensor?"`:                                     {want: []string{"way       ", "10.0.0.8:8200", "SCORES"}},
	"pdctl route --explain body.json --proxy http://10.0.0.1:8000":                 {want: []string{"way       pair", "prefill   ", "10.0.0.7:8100", "SCORES"}},
	"pdctl route --explain - --endpoint /v1/completions -o json < completion.json": {want: []string{"asked: http://10.0.0.1:8000", `"pair"`}},

	"pdctl restore --all":                 {want: []string{"1 proxy notified: restore the kept keys"}, after: has("/pd/meta/kept")},
	"pdctl restore prefill 10.0.0.7:8100": {want: []string{"1 proxy notified: restore the kept keys"}},
	"pdctl forget --all":                  {want: []string{"1 proxy notified: forget the kept keys"}},
	"pdctl forget prefill 10.0.0.7:8100":  {want: []string{"1 proxy notified: forget the kept keys"}},
	"pdctl export | pdctl apply --etcd-endpoints 10.0.0.1:2379 -f -": {
		spare: true, before: []string{"pdctl add prefill 10.0.0.7:8100"}, want: []string{"+ prefill/10.0.0.7:8100", "; keys: "},
	},

	"pdctl diff --from 4710":           {set: (*stage).undone, want: []string{"+ override/decode/10.0.0.9:8200\n    + {\"v\":1,\"state\":\"drain\",\"reason\":\"wrong rack\""}},
	"pdctl diff --from 4710 --to 4711": {set: (*stage).undone, want: []string{"+ override/decode/10.0.0.9:8200\n"}},
	"pdctl revert 4710 --dry-run":      {set: (*stage).undone, want: []string{"Dry run: nothing is written.", "delete  /pd/override/decode/10.0.0.9:8200"}},
	`pdctl revert --only 4711 --reason "wrong rack"`: {
		set: (*stage).undone, want: []string{"- override/decode/10.0.0.9:8200", "; keys: 1"},
	},
	"pdctl apply -f fleet.yaml --dry-run": {spare: true, set: declare, want: []string{"+ prefill/10.0.0.7:8100", "Dry run: nothing is written."}},
	`pdctl apply -f fleet.yaml --prune --reason "rack 4"`: {
		spare: true, set: declare, want: []string{"+ prefill/10.0.0.7:8100", "written at revision "}, after: has("/pd/prefill/10.0.0.7:8100"),
	},
	"pdctl export > fleet.yaml": {before: []string{"pdctl cordon decode/10.0.0.9:8200"}, after: func(s *stage) { s.holds("fleet.yaml", s.here("decode/10.0.0.9:8200")) }},

	"pdctl debug": {want: []string{"tar.gz: 9 files, 0 notes"}},
	"pdctl debug -f report.tar.gz --proxy http://10.0.0.1:8000": {want: []string{"report.tar.gz: 9 files, 0 notes"}},
	"pdctl debug -f - > debug.tar.gz":                           {want: []string{"-: 9 files, 0 notes"}},

	"pdctl auth init --dry-run": {want: []string{"# Nothing is changed.", "etcdctl role add pd-proxy", "etcdctl auth enable"}},
	"pdctl auth init --apply --password-file pd-proxy=proxy.pass --password-file root=root.pass": {
		alone: true, want: []string{"pd-proxy: created with the password of its file", "pd-operator: password ", "authentication is on"},
	},
	"pdctl --etcd-endpoints https://10.0.0.1:2379 --etcd-ca ca.pem auth init --apply": {
		set: (*stage).secure, want: []string{"root: password ", "authentication is on"},
	},

	"pdctl mooncake segments":                                             {set: segments, want: []string{"127.0.0.1:12001", "not listening"}},
	"pdctl mooncake segments --dial=false":                                {set: segments, want: []string{"127.0.0.1:12001"}},
	"pdctl mooncake segments -o json | jq '.segments[] | select(.stale)'": {set: segments, want: []string{`"stale": "not listening"`}},

	"source <(pdctl completion bash)":    {},
	"systemctl stop pdmesh-agent@decode": {skip: "placeholder for any way to stop a node; the unit is not installed here"},
}

// declare writes a file for pdctl apply.
func declare(s *stage) {
	text := "statics:\n  prefill/" + s.here("10.0.0.7:8100") + ": {connector: nixl}\n"
	require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, "fleet.yaml"), []byte(text), 0o600))
}

// segments writes the keys that a stopped Mooncake process leaves behind.
func segments(s *stage) {
	s.put("mooncake/ram/127.0.0.1:12001", `{"name":"x","protocol":"tcp"}`)
	_, port, _ := net.SplitHostPort(testkit.FreePort(s.t))
	s.put("mooncake/rpc_meta/127.0.0.1:12001", `{"ip_or_host_name":"127.0.0.1","rpc_port":`+port+`}`)
}
