package main

import "testing"

func TestKindOf(t *testing.T) {
	t.Parallel()
	for location, want := range map[string]string{
		"internal/forward/leg.go":      product,
		"internal/openai/strscan/a.s":  product,
		"cmd/proxy/main.go":            product,
		"internal/forward/leg_test.go": tests,
		"bench/gate/main_test.go":      tests,
		"test/harness/pages.go":        tests,
		"sim/testkit/etcd.go":          rest,
		"sim/fakevllm/kv/pool.go":      rest,
		"cmd/bench/main.go":            rest,
		"bench/gate/main.go":           rest,
		"tools/size/main.go":           rest,
	} {
		if got := kindOf(location); got != want {
			t.Errorf("%s is %s, want %s", location, got, want)
		}
	}
}
