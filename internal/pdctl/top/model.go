package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// model is the state of the live view.
type model struct {
	o *options
	// poll reads a frame; act makes a change and returns its outcome. They run in goroutines.
	poll func() (*frame, error)
	act  func(change) string

	frame         *frame // nil: not read yet
	err           error  // of the last poll
	tick          int    // number of the newest timer; older ones are ignored
	width, height int
	selected      instance.Key
	filter        string
	filtering     bool // keys edit the filter
	dialog        *dialog
	outcome       string // outcome of the last change
}

// Messages of the goroutines.
type (
	frameMsg struct {
		frame *frame
		err   error
	}
	tickMsg    int
	outcomeMsg string
)

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return m.read }

func (m *model) read() tea.Msg {
	f, err := m.poll()
	return frameMsg{f, err}
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case frameMsg:
		if m.err = msg.err; msg.err == nil {
			m.frame = msg.frame
		}
		m.tick++
		n := m.tick
		return m, tea.Tick(m.o.every, func(time.Time) tea.Msg { return tickMsg(n) })
	case tickMsg:
		if int(msg) == m.tick {
			return m, m.read
		}
	case outcomeMsg:
		m.outcome = string(msg)
		return m, m.read
	case tea.KeyPressMsg:
		return m, m.key(msg.String(), msg.Key().Text)
	}
	return m, nil
}

// maxTyped bounds a text that is typed, in bytes.
const maxTyped = 200

// key handles a key press; typed is its text, "" for a key without text.
func (m *model) key(key, typed string) tea.Cmd {
	to := &m.filter
	if m.dialog != nil {
		to = &m.dialog.typed
	}
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case key == "esc":
		m.dialog, m.filtering, m.filter = nil, false, ""
	case key == "enter" && m.dialog != nil:
		return m.confirm()
	case key == "enter":
		m.filtering = false
	case m.dialog == nil && !m.filtering:
		return m.command(key)
	case key == "backspace":
		all := []rune(*to)
		*to = string(all[:max(0, len(all)-1)])
	case len(*to)+len(typed) <= maxTyped:
		*to += instance.Printable(typed, 0)
	}
	return nil
}

func (m *model) command(key string) tea.Cmd {
	moves := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -10, "pgdown": 10}
	rows, names := m.rows(), sorts()
	switch {
	case key == "q":
		return tea.Quit
	case key == "/":
		m.filtering = true
	case key == "s":
		m.o.sort = names[(slices.Index(names, m.o.sort)+1)%len(names)]
	case key == "r":
		m.o.reverse = !m.o.reverse
	case len(rows) == 0:
	case moves[key] != 0:
		m.selected = rows[min(max(0, m.at(rows)+moves[key]), len(rows)-1)].key()
	case verbs()[key] != "":
		m.dialog, m.outcome = newDialog(verbs()[key], rows[m.at(rows)]), ""
	}
	return nil
}

// rows returns the rows that match the filter.
func (m *model) rows() []*row {
	if m.frame == nil {
		return nil
	}
	return m.frame.arrange(m.o.sort, m.o.reverse, m.filter)
}

// at returns the index of the selected row, 0 if there is no such instance any more.
func (m *model) at(rows []*row) int {
	return max(0, slices.IndexFunc(rows, func(r *row) bool { return r.key() == m.selected }))
}

const (
	// maxHead bounds the lines about the fleet and the proxies.
	maxHead = 12
	// minTable is the height of the smallest table: a heading and one row, between empty lines.
	minTable = 4
)

// View implements tea.Model.
func (m *model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	return v
}

// lines returns the lines of the screen.
func (m *model) lines() []string {
	width := max(20, m.width)
	if m.frame == nil {
		return []string{text.Trim(cmp.Or(m.problem(), "Reading the fleet ..."), width)}
	}
	rows, bottom, head := m.rows(), m.bottom(), m.frame.head()
	table, at := instanceLines(rows), m.at(rows)
	head = head[:max(1, min(len(head), maxHead, m.height-minTable-len(bottom)))]
	lines := append(slices.Clone(head), "", table[0])
	space := max(1, m.height-len(lines)-len(bottom)-1)
	first := max(0, min(at-space/2, len(rows)-space))
	paint := map[int]text.Colors{0: {text.Bold}, len(lines) - 1: {text.Bold}}
	for i := first; i < min(len(rows), first+space); i++ {
		switch r := rows[i]; {
		case r.Serves:
		case r.Intent != "":
			paint[len(lines)] = append(paint[len(lines)], text.FgYellow)
		default:
			paint[len(lines)] = append(paint[len(lines)], text.FgRed)
		}
		if i == at {
			paint[len(lines)] = append(paint[len(lines)], text.ReverseVideo)
		}
		lines = append(lines, table[1+i])
	}
	lines = append(append(lines, ""), bottom...)
	for i := range lines {
		lines[i] = paint[i].Sprint(text.Trim(instance.Printable(lines[i], 0), width))
	}
	return lines
}

// problem returns the line about the last error, "" if there is none.
func (m *model) problem() string {
	if m.err == nil {
		return ""
	}
	return "etcd: " + instance.Printable(session.WithoutHint(m.err), 300)
}

// bottom returns the lines below the instances.
func (m *model) bottom() []string {
	if m.dialog != nil {
		return m.dialog.lines(m.frame)
	}
	line := fmt.Sprintf("%s Sorted by %s.", m.frame.period(), m.o.sort)
	if m.filtering {
		line = fmt.Sprintf("filter: %s_  (enter keeps it, esc removes it)", m.filter)
	} else if m.filter != "" {
		line += " Filter: " + m.filter
	}
	return []string{cmp.Or(m.problem(), m.outcome, line), "up/down select  s sort  r reverse  / filter  d drain  c cordon  w weight  R role  q quit"}
}

// live shows frames until the user quits or ctx ends.
func live(ctx context.Context, c *collector, o *options, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	m := &model{
		o: o, poll: func() (*frame, error) { return c.collect(ctx) },
		act: func(x change) string { return x.apply(ctx, c.conn.Store.Intents, c.s.Dry.On) },
	}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	cancel()
	c.mu.Lock() // wait for the last poll
	defer c.mu.Unlock()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
