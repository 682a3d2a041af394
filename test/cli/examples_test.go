package cli_test

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
)

// example describes how a line is run and its expected effect.
type example struct {
	// skip is the reason for not running the line; no other field is set then.
	skip string
	// spare: the addresses are those of unregistered engines; late: no engine is running yet.
	spare, late bool
	// before are commands that prepare the fleet, with the same addresses.
	before []string
	set    func(s *stage)
	// alone starts a separate etcd for the line.
	alone bool
	code  int
	want  []string // texts in the output, with the addresses of the example
	// during is called while the command runs; it stops commands that run until interrupted.
	during func(s *stage, c *typed)
	// after checks the state afterwards.
	after func(s *stage)
}

// watched interrupts a command after it has printed a text.
func watched(words string) func(*stage, *typed) {
	return func(s *stage, c *typed) {
		c.sees(s.t, s.here(words))
		s.interrupt()
	}
}

// down writes a record with the state down.
func down(s *stage) { s.put("/pd/decode/127.0.0.1:9", `{"models":["`+modelName+`"],"state":"down"}`) }

// has fails the test unless a key exists.
func has(key string) func(*stage) {
	return func(s *stage) {
		s.t.Helper()
		key := s.here(key)
		if resp, err := s.cli.Get(s.t.Context(), key); err != nil || len(resp.Kvs) != 1 {
			s.t.Errorf("%s does not exist (%v)", key, err)
		}
	}
}

// Every example of every command's help, and every line of the page, works as described.
func TestEveryExample(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil && os.Getenv("REQUIRE_JQ") == "" {
		t.Skip("the examples need jq")
	}
	lines := map[string]bool{}
	for name, examples := range helps(t) {
		assert.NotEmpty(t, examples, "%s has no example", name)
		of := false
		for _, line := range examples {
			lines[line] = true
			of = of || strings.Contains(line, strings.TrimPrefix(name, "pdctl "))
		}
		assert.True(t, of, "%s has no example of itself: %q", name, examples)
	}
	page := blocks(t, "../../docs/cli.md")
	require.GreaterOrEqual(t, len(page), 15, "only %d lines on the page", len(page))
	for _, line := range page {
		lines[line] = true
	}
	for line := range lines {
		if _, ok := examples[line]; !ok {
			t.Errorf("no entry in the table for %q", line)
		}
	}
	for line := range examples {
		assert.True(t, lines[line], "neither a help nor the page contains %q", line)
	}
	s := newStage(t)
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		if e, ok := examples[line]; ok && e.skip == "" {
			t.Run(line, func(t *testing.T) {
				s.t = t
				s.play(line, e)
			})
		}
	}
}

// play runs one line and checks its effect.
func (s *stage) play(line string, e example) {
	t, etcd := s.t, s.etcd
	t.Helper()
	if e.alone {
		etcd = etcdtest.Start(t).Endpoint()
	}
	defer s.reset()
	switch s.book = s.registered; {
	case e.spare:
		s.book = s.spare
	case e.late:
		s.book = map[string]string{"10.0.0.7:8100": testkit.FreePort(t)}
	}
	if e.set != nil {
		e.set(s)
	}
	for _, one := range e.before {
		c := s.begin(s.here(one), etcd)
		if code := c.end(); code != 0 {
			t.Fatalf("before: %s: exit %d\n%s", one, code, c.out.String())
		}
	}
	typed := s.here(line)
	c := s.begin(typed, etcd)
	if e.during != nil {
		e.during(s, c)
	}
	assert.Equal(t, e.code, c.end(), "%s: exit", typed)
	out := c.out.String()
	for _, words := range e.want {
		if words = s.here(words); !strings.Contains(out, words) {
			t.Errorf("%q is not in the output", words)
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", typed, out)
	}
	if e.after != nil {
		e.after(s)
	}
}
