package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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

func TestShape(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a/one.go": "package a\n\ntype T[E any] struct{}\n\nfunc (t *T[E]) A() {\n}\n\nfunc (T[E]) B() {}\n",
		"a/two.go": "package a\n\n// Comments do not count.\nfunc F(\n\tx int,\n) {\n\t_ = x\n}\n",
		"b/b.go":   "package b\n\ntype U struct{}\n\nfunc (U) A() {}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := shapeOf(dir, []string{"a/one.go", "a/two.go", "b/b.go"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s.write(&out)
	for _, want := range []string{"| methods | a.T 2, b.U 1 |", "| files | a 2, b 1 |", "| lines | a.F 5, a.T.A 2, a.T.B 1, b.U.A 1 |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
