package session

import (
	"fmt"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

// Result is the result of a command for one address.
type Result struct {
	Role    instance.Role `json:"role"`
	Address string        `json:"address"`
	Outcome string        `json:"outcome"` // added, already, waiting, removed, forbidden, allowed, drained, idle, …, failed
	Models  []string      `json:"models,omitempty"`
	Error   string        `json:"error,omitempty"`
	// Revision of the change. A proxy that has applied it has seen the change.
	Revision int64  `json:"revision,omitempty"`
	Text     string `json:"-"` // the outcome as text
	Interim  bool   `json:"-"` // the command still waits for the final result; -o name omits it
}

// Failed returns the result of an address that failed, with the reason.
func (r Result) Failed(format string, args ...any) Result {
	r.Outcome, r.Error = "failed", fmt.Errorf(format, args...).Error()
	r.Text = "failed: " + r.Error
	return r
}

// Line prints one result immediately, so that a long list shows its progress.
func (s *Session) Line(r Result) {
	if s.Out.Structured() {
		return
	}
	if s.Out.Format == output.Name {
		if r.Outcome == "failed" {
			fmt.Fprintf(s.Out.Stderr, "%s/%s: %s\n", r.Role, r.Address, r.Text)
		} else if !r.Interim {
			s.Out.Printf("%s/%s\n", r.Role, r.Address)
		}
		return
	}
	if s.Dry.On {
		r.Text = "would be: " + r.Text
	}
	if r.Outcome == "waiting" {
		s.Out.Printf("Waiting for %s/%s: %s\n", r.Role, r.Address, r.Text)
		return
	}
	s.Out.Printf("%s/%s: %s\n", r.Role, r.Address, r.Text)
}

// Finish prints the JSON form and turns failures into the exit code.
func (s *Session) Finish(results []Result) error {
	failed := 0
	for _, r := range results {
		if r.Outcome == "failed" {
			failed++
		}
	}
	if s.Out.Structured() {
		if err := s.WriteChange(map[string]any{"results": results}); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d failed", failed, len(results))
	}
	return nil
}

// WriteChange prints the JSON form of a change, in a dry run with the writes recorded so far.
func (s *Session) WriteChange(all map[string]any) error {
	if s.Dry.On {
		all["dry_run"] = s.Dry.Planned()
	}
	return s.Out.Write(all)
}
