package cli_test

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

// example is how a line is typed, and what has to come of it.
type example struct {
	// skip is why it is not typed at all. Nothing else is set then.
	skip string
	// spare: its addresses are engines that nobody has registered; late: there is none yet.
	spare, late bool
	// before is what has to be so. Its lines are typed with the same addresses.
	before []string
	set    func(s *stage)
	// alone starts a separate etcd for it.
	alone bool
	code  int
	want  []string // words of the output, addresses as in the example
	// during is done while it runs; it ends commands that go on.
	during func(s *stage, c *typed)
	// after looks at what it has left.
	after func(s *stage)
}

// watched ends a command that goes on when it has said something.
func watched(words string) func(*stage, *typed) {
	return func(s *stage, c *typed) {
		c.sees(s.t, s.here(words))
		s.interrupt()
	}
}

// down writes a record that says so.
func down(s *stage) { s.put("/pd/decode/127.0.0.1:9", `{"models":["`+modelName+`"],"state":"down"}`) }

// has fails unless a key is there.
func has(key string) func(*stage) {
	return func(s *stage) {
		s.t.Helper()
		key := s.here(key)
		if resp, err := s.cli.Get(s.t.Context(), key); err != nil || len(resp.Kvs) != 1 {
			s.t.Errorf("%s is not there (%v)", key, err)
		}
	}
}

// Every example of every command's help, and every line of the page, does what it says.
func TestEveryExample(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil && os.Getenv("REQUIRE_JQ") == "" {
		t.Skip("the examples need jq")
	}
	lines := map[string]bool{}
	for name, examples := range helps(t) {
		if len(examples) == 0 {
			t.Errorf("%s has no example", name)
		}
		of := false
		for _, line := range examples {
			lines[line] = true
			of = of || strings.Contains(line, strings.TrimPrefix(name, "pdctl "))
		}
		if !of {
			t.Errorf("%s has no example of itself: %q", name, examples)
		}
	}
	page := blocks(t, "../../docs/cli.md")
	if len(page) < 15 {
		t.Fatalf("only %d lines on the page", len(page))
	}
	for _, line := range page {
		lines[line] = true
	}
	for line := range lines {
		if _, ok := examples[line]; !ok {
			t.Errorf("nothing says how to run %q", line)
		}
	}
	for line := range examples {
		if !lines[line] {
			t.Errorf("no help and no page has %q", line)
		}
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

// play types one line and looks at what comes of it.
func (s *stage) play(line string, e example) {
	t, etcd := s.t, s.etcd
	t.Helper()
	if e.alone {
		etcd = testkit.StartEtcd(t).Endpoint()
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
	if code := c.end(); code != e.code {
		t.Errorf("%s: exit %d, want %d", typed, code, e.code)
	}
	out := c.out.String()
	for _, words := range e.want {
		if words = s.here(words); !strings.Contains(out, words) {
			t.Errorf("%q is not said", words)
		}
	}
	if t.Failed() {
		t.Logf("%s\n%s", typed, out)
	}
	if e.after != nil {
		e.after(s)
	}
}
