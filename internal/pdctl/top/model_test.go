package top

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

// testModel is a model with two prefill and three decode instances, one of them drained.
type testModel struct {
	*model
	t    *testing.T
	done []change
}

func newTestModel(t *testing.T) *testModel {
	m := &testModel{t: t}
	m.model = &model{
		o: &options{sort: "address", every: time.Hour}, width: 100, height: 20,
		poll: func() (*frame, error) { return m.frame, nil },
		act:  func(x change) string { m.done = append(m.done, x); return "done" },
	}
	f := &frame{At: time.Date(2026, 11, 26, 9, 0, 0, 0, time.UTC), Revision: 7, Proxies: []proxy{{ID: "a", Address: "10.0.0.1:8000", Source: "digest", Error: "refused"}},
		Queues: []instance.ListedQueue{{Model: "chat", Mode: "on", Waiting: map[string]int{"interactive": 1, "batch": 40}, Keys: map[string]int{"": 1, "team": 40}, Oldest: 2.5}}}
	for i, address := range []string{"p:1", "p:2", "d:1", "d:2", "d:3"} {
		role, n, load, weight := instance.Decode, int64(i), float64(i)/10, 100
		if address[0] == 'p' {
			role = instance.Prefill
		}
		f.all = append(f.all, &row{
			Listing: instance.Listing{Role: role, Address: address, Status: "ready", Models: []string{"chat"}, Weight: &weight, InFlight: &n}, Serves: true, Usage: &load,
		})
	}
	d3 := f.all[4]
	d3.Serves, d3.Status, d3.Intent, d3.Reason, d3.Usage = false, "drain", instance.Drain, "new disks", nil
	f.Instances = f.all
	m.Update(frameMsg{frame: f})
	return m
}

// press presses keys; keys with more than one letter are names.
func (m *testModel) press(keys ...string) (last tea.Cmd) {
	named := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "backspace": tea.KeyBackspace}
	for _, k := range keys {
		if code, ok := named[k]; ok {
			_, last = m.Update(tea.KeyPressMsg{Code: code})
			continue
		}
		for _, r := range k {
			_, last = m.Update(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
	return last
}

func (m *testModel) screen() string {
	m.t.Helper()
	lines := m.lines()
	for i, line := range lines {
		lines[i] = text.StripEscape(line)
		assert.LessOrEqual(m.t, len(lines[i]), m.width, "%d columns: %q", len(lines[i]), lines[i])
	}
	return strings.Join(lines, "\n")
}

// shows fails the test unless the screen contains all texts.
func (m *testModel) shows(texts ...string) {
	m.t.Helper()
	testkit.Contains(m.t, m.screen(), texts...)
}

// addresses returns the addresses on the screen, from top to bottom.
func (m *testModel) addresses() (out []string) {
	for line := range strings.Lines(m.screen()) {
		if f := strings.Fields(line); len(f) > 5 && (f[0] == "prefill" || f[0] == "decode") {
			out = append(out, f[1])
		}
	}
	return out
}

// A low terminal shows less about the proxies, but always the selected instance and the dialog.
func TestLowScreen(t *testing.T) {
	t.Parallel()
	m := newTestModel(t)
	for i := range 20 {
		m.frame.Proxies = append(m.frame.Proxies, proxy{ID: "b", Address: fmt.Sprintf("10.0.1.%d:8000", i)})
	}
	m.press("down", "down", "d")
	for m.height = 40; m.height >= 10; m.height-- {
		m.shows("09:00:00 UTC", "decode   d:1", "enter confirms, esc cancels")
		n := len(m.lines())
		assert.LessOrEqual(t, n, m.height, "%d lines in %d", n, m.height)
	}
}

// A key that was written by hand may have any address.
func TestAddressWithControlCharacters(t *testing.T) {
	t.Parallel()
	m := newTestModel(t)
	n := len(m.lines())
	m.frame.all[2].Address = "a\x1b[2J\n:1"
	assert.Len(t, m.lines(), n)
	m.press("down", "down", "d")
	m.shows(`decode   a\u001b[2J`, `drain decode/a\u001b[2J`)
	assert.NotContains(t, strings.Join(m.lines(), ""), "\x1b[2J")
}

func TestScreen(t *testing.T) {
	t.Parallel()
	m := newTestModel(t)
	m.shows("09:00:00 UTC  revision 7  prefill 2/2 serving  decode 2/3 serving  - req/s", "10.0.0.1:8000  -        serving  -          digest: refused",
		"queue of chat (on): batch 40 interactive 1; by key: (no name) 1 team 40; oldest 2.50 s",
		"decode   d:3      drain          4        -     -     -     -          -     -  100     new disks", "since the proxies started. Sorted by address.")
	for _, tc := range []struct {
		keys string
		want string
	}{
		{"", "[p:1 p:2 d:1 d:2 d:3]"},
		{"ss", "[p:2 p:1 d:3 d:2 d:1]"}, // in flight
		{"r", "[p:1 p:2 d:1 d:2 d:3]"},
		{"rss", "[p:2 p:1 d:2 d:1 d:3]"}, // KV cache; unknown is last
		{"/NEW d", "[d:3]"},
		{"?", "[]"},
	} {
		m.press(tc.keys)
		if got := fmt.Sprint(m.addresses()); got != tc.want {
			t.Errorf("after %q: %s, want %s\n%s", tc.keys, got, tc.want, m.screen())
		}
	}
	m.press("backspace", "enter")
	m.shows("Filter: NEW d")
	m.press("esc")
	assert.Len(t, m.addresses(), 5, "without the filter")
	// The selected line remains visible on a small screen, and an error of etcd replaces no instance.
	m.height = 11
	m.press("down", "down", "down", "down", "down", "down")
	m.Update(frameMsg{err: errors.New("no leader")})
	m.shows("etcd: no leader")
	if got := m.addresses(); len(got) == 0 || len(got) > 2 || m.selected.Address != m.rows()[4].Address || !slices.Contains(got, m.selected.Address) {
		t.Errorf("%v, selected %s", got, m.selected)
	}
	assert.True(t, m.press("q") != nil, "q does not quit")
}

// A change shows its effect, and is made after enter.
func TestChange(t *testing.T) {
	t.Parallel()
	d1 := instance.Key{Role: instance.Decode, Address: "d:1"}
	d2, d3, p1 := d1, d1, instance.Key{Role: instance.Prefill, Address: "p:1"}
	d2.Address, d3.Address = "d:2", "d:3"
	for _, tc := range []struct {
		name   string
		on     instance.Key
		weight int // of d:2; 0: not serving
		keys   []string
		shows  string
		want   change // no verb: no change
	}{
		{"drain", d1, 100, []string{"d", "new disks"}, "1 of 2 serving decode instances remain. 2 in flight there run to their end.", change{key: d1, verb: "drain", weight: -1, reason: "new disks"}},
		{"cordon", p1, 100, []string{"c"}, "1 of 2 serving prefill instances remain.", change{key: p1, verb: "cordon", weight: -1, reason: ""}},
		{"undrain", d3, 100, []string{"d"}, "It takes requests again: 3 of 3 decode", change{key: d3, verb: "undrain", weight: -1, reason: ""}},
		{"cordon of a drained one", d3, 100, []string{"c"}, "It does not serve now: 2 of 3 decode", change{key: d3, verb: "cordon", weight: -1, reason: ""}},
		{"weight", d2, 100, []string{"w300 more memory"}, "2 of 3 decode instances serve.", change{key: d2, verb: "weight", weight: 300, reason: "more memory"}},
		{"no weight", d2, 100, []string{"w"}, "weight and reason: _", change{}},
		{"invalid weight", d2, 100, []string{"w10001"}, "2 of 3 decode instances serve.", change{}},
		{"weight 0", d2, 100, []string{"w00"}, "1 of 2 serving decode instances remain.", change{key: d2, verb: "weight", weight: 0, reason: ""}},
		{"last one", d1, 0, []string{"dnew disks"}, `"yes" and reason: new disks_`, change{}},
		{"last one, confirmed", d1, 0, []string{"dyes new disks"}, "No decode instance remains: every request is refused with 503. 2 in flight", change{key: d1, verb: "drain", weight: -1, sure: true, reason: "new disks"}},
		{"weight 0 of the last one", d1, 0, []string{"w0"}, "No decode instance remains", change{}},
		{"weight 0 of the last one, confirmed", d1, 0, []string{"w0 yes"}, "No decode instance remains", change{key: d1, verb: "weight", sure: true}},
		{"role", d2, 100, []string{"Rprefill at night"}, "1 of 2 serving decode instances remain.", change{key: d2, verb: "role", weight: -1, role: instance.Prefill, reason: "at night"}},
		{"role of the last one", d1, 0, []string{"Rprefill"}, `role and "yes" and reason: prefill_`, change{}},
		{"both roles", d2, 100, []string{"Rboth"}, "serves in the role that you type, or in both", change{key: d2, verb: "role", weight: -1, role: instance.Both}},
		{"no role", d2, 100, []string{"Rencode"}, "serves in the role that you type, or in both", change{}},
		{"cancelled", d1, 100, []string{"dx", "esc"}, "d:1", change{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := newTestModel(t)
			m.frame.all[3].Serves = tc.weight > 0
			m.selected = tc.on
			m.press(tc.keys...)
			m.shows(tc.shows)
			cmd := m.press("enter")
			if (cmd != nil) != (tc.want.verb != "") {
				t.Fatalf("made: %t\n%s", cmd != nil, m.screen())
			}
			if cmd == nil {
				return
			}
			m.Update(cmd())
			m.shows("done")
			assert.True(t, len(m.done) == 1 && m.done[0] == tc.want, "%+v, want %+v", m.done, tc.want)
		})
	}
}

// A change uses the connector of the frame on the screen: a later frame is read concurrently with the change.
func TestChangeKeepsTheConnector(t *testing.T) {
	t.Parallel()
	m := newTestModel(t)
	m.frame.usual = "nixl"
	m.press("Rboth")
	run := m.press("enter")
	m.Update(frameMsg{frame: &frame{usual: "mooncake"}})
	run()
	assert.True(t, len(m.done) == 1 && m.done[0].usual == "nixl", "%+v", m.done)
}
