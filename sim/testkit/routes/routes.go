// Package routes reads the lists of vLLM's routes and the table of what the proxy does
// with each, for the tests that hold them together.
package routes

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Route is a method and a path, as in "POST /v1/completions"; parts of the path that
// vary are {}. ANY represents all methods.
type Route string

// Of makes a Route, whatever names parameters have: {id}, :id, *id.
func Of(method, path string) Route {
	return Route(method + " " + parameter.ReplaceAllString(path, "{}"))
}

var parameter = regexp.MustCompile(`\{[^}]*\}|[:*][a-z_]+`)

// Method returns the method.
func (r Route) Method() string { method, _, _ := strings.Cut(string(r), " "); return method }

// Path returns the path with something in place of each parameter.
func (r Route) Path() string {
	_, path, _ := strings.Cut(string(r), " ")
	return strings.NewReplacer("{}", "x", "*", "x").Replace(path)
}

// The verdicts of docs/reference/routes.md.
const (
	PD       = "pd"
	Passed   = "passed"
	FannedTo = "fanned_out"
	Answered = "answered"
	Refused  = "refused"
)

// Row is a line of the table in docs/reference/routes.md.
type Row struct {
	Route    Route
	Releases []string // "0.32", "0.33"
	When     string
	Verdict  string
	Note     string // of a refused route the reason
}

// Table reads docs/reference/routes.md: its rows in order, and the routes of the proxy alone.
func Table(file string) (rows []Row, own []Route, err error) {
	raw, err := os.ReadFile(file) //nolint:gosec // a test's own
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		names := routeIn.FindAllStringSubmatch(cells[0], -1)
		switch {
		case !strings.HasPrefix(line, "|") || names == nil:
		case len(cells) == 2:
			for _, name := range names {
				own = append(own, Of(name[1], name[2]))
			}
		case len(cells) == 5 && len(names) == 1:
			rows = append(rows, Row{
				Route: Of(names[0][1], names[0][2]), Releases: strings.Split(strings.TrimSpace(cells[1]), ", "),
				When: strings.TrimSpace(cells[2]), Verdict: strings.TrimSpace(cells[3]), Note: strings.TrimSpace(cells[4]),
			})
		default:
			return nil, nil, fmt.Errorf("%s: no row of the table: %s", file, line)
		}
	}
	return rows, own, nil
}

var routeIn = regexp.MustCompile("`([A-Z]+) (/[^`]*)`")
