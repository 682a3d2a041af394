package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// row is what status shows of a process.
type row struct {
	Service string   `json:"service"`
	State   string   `json:"state"`  // running or ended
	Health  string   `json:"health"` // healthy, unhealthy, or empty without a check
	Reason  string   `json:"reason,omitempty"`
	PID     int      `json:"pid"`
	Listens []string `json:"listens"`
	Log     string   `json:"log"`
}

var errNotWell = errors.New("not everything runs and is healthy")

func (a *app) status(ctx context.Context) error {
	s, err := a.read()
	if err != nil {
		return err
	}
	return a.print(ctx, s)
}

func (a *app) print(ctx context.Context, s *state) error {
	rows, well := a.rows(ctx, s)
	if a.output == "json" {
		enc := json.NewEncoder(a.stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(map[string]any{"dir": a.dir, "processes": rows}); err != nil {
			return err
		}
	} else if len(rows) == 0 {
		fmt.Fprintln(a.stdout, "Nothing was started. Start it with: scripts/fleet up")
	} else {
		a.table(rows)
		if e := s.endpoints(); e != "" {
			fmt.Fprintf(a.stdout, "Etcd: pdctl --etcd-endpoints %s list\n", e)
		}
	}
	if !well {
		return errNotWell
	}
	return nil
}

// endpoints is the etcd that the processes were told of.
func (s *state) endpoints() string {
	for _, p := range s.Processes {
		for _, e := range p.Env {
			if v, ok := strings.CutPrefix(e, "PD_ETCD_ENDPOINTS="); ok {
				return v
			}
		}
	}
	return ""
}

// rows looks at all processes at once.
func (a *app) rows(ctx context.Context, s *state) (rows []row, well bool) {
	rows = make([]row, len(s.Processes))
	var group sync.WaitGroup
	for i, p := range s.Processes {
		group.Go(func() {
			r := row{Service: p.Name, State: "running", PID: p.PID, Listens: p.Listens, Log: p.Log}
			if !p.alive() {
				r.State = "ended"
			} else if len(p.Check) > 0 {
				r.Health = "healthy"
				if err := a.health(ctx, p); err != nil {
					r.Health, r.Reason = "unhealthy", err.Error()
				}
			}
			rows[i] = r
		})
	}
	group.Wait()
	well = true
	for _, r := range rows {
		well = well && r.State == "running" && r.Health != "unhealthy"
	}
	return rows, well
}

func (a *app) table(rows []row) {
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(table.Row{"SERVICE", "STATE", "HEALTH", "PID", "LISTENS"})
	for _, r := range rows {
		health := r.Health
		if health == "" {
			health = "-"
		}
		t.AppendRow(table.Row{r.Service, r.State, health, strconv.Itoa(r.PID), strings.Join(r.Listens, " ")})
	}
	fmt.Fprintln(a.stdout, t.Render())
	for _, r := range rows {
		if r.Reason != "" {
			fmt.Fprintf(a.stdout, "%s: %s\n", r.Service, instance.Printable(r.Reason, 300))
		}
	}
	fmt.Fprintf(a.stdout, "\nLogs: %s\n", a.path("logs"))
}
