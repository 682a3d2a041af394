package pdctl

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// writeJSON prints one value, indented, with a newline. '<' and '&' stay as
// they are: nobody embeds this in HTML.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// newTable prints columns without borders, so that lines can be cut and grepped.
func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(header)
	return t
}

func render(w io.Writer, t table.Writer) error {
	if _, err := fmt.Fprintln(w, t.Render()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// effective is the one word that says what an entry is worth at the moment.
func effective(in *instance.Instance) string {
	switch {
	case in.View == instance.Pending, in.View == instance.Rejected:
		return string(in.View)
	case in.Intent != "":
		return string(in.Intent)
	case in.View == instance.Unverified:
		return string(in.View)
	}
	return string(in.Record.State)
}

// listTable shows every entry; columns nobody has a value for are left out, unless it is
// to be wide.
func listTable(snap *instance.Snapshot, connector string, wide bool) table.Writer {
	header := []string{"ROLE", "ADDRESS", "STATE", "VIEW", "INTENT", "KIND", "MODELS", "CONNECTOR", "RANKS", "WEIGHT", "SOURCE", "FOR", "REVISION", "REASON", "WARNING"}
	if wide {
		header = append(header, "VERSION", "ID", "LABELS", "HOST", "LEASE")
	}
	optional := map[string]bool{"VIEW": true, "INTENT": true, "CONNECTOR": true, "RANKS": true, "WEIGHT": true, "FOR": true, "REASON": true, "WARNING": true}
	var rows [][]string
	for _, in := range snap.All() {
		l := in.List()
		weighs := ""
		if l.Weight != nil {
			weighs = weight(l.Weight)
		}
		ranks := ""
		if l.Ranks > 0 {
			ranks = strconv.Itoa(l.Ranks)
		}
		state := string(l.State)
		switch {
		case in.View == instance.Pending: // what its record will say
			state = ""
		case l.Cause != "":
			state += " (" + l.Cause + ")"
		}
		row := []string{
			string(l.Role), instance.Printable(l.Address, 0), state, string(l.View), string(l.Intent), kind(in),
			shortModels(l.Models), l.Connector, ranks, weighs, l.Source, strings.Join(l.Proxies, ","), strconv.FormatInt(l.Revision, 10),
			instance.Printable(l.Reason, 200), in.Warning(connector),
		}
		if wide {
			row = append(row, l.Version, l.ID, labels(in.Record.Labels), instance.Printable(in.Record.HostID, 80), leaseName(in.Lease))
		}
		rows = append(rows, row)
	}
	var keep []int
	for i, h := range header {
		used := wide || !optional[h]
		for _, row := range rows {
			used = used || row[i] != ""
		}
		if used {
			keep = append(keep, i)
		}
	}
	pick := func(row []string) table.Row {
		out := make(table.Row, 0, len(keep))
		for _, i := range keep {
			cell := row[i]
			if cell == "" {
				cell = "-"
			}
			out = append(out, cell)
		}
		return out
	}
	t := newTable(pick(header)...)
	for _, row := range rows {
		t.AppendRow(pick(row))
	}
	return t
}

func kind(in *instance.Instance) string {
	switch {
	case in.View == instance.Pending:
		return "pending"
	case in.Static():
		return "static"
	}
	return "leased"
}

// shortModels names the first two.
func shortModels(models []string) string {
	const most = 2
	if len(models) <= most {
		return strings.Join(models, ",")
	}
	return fmt.Sprintf("%s +%d", strings.Join(models[:most], ","), len(models)-most)
}

// byteSize is a size for people.
func byteSize(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), 0
	for units := "KMGT"; v >= 1<<10 && unit < len(units); unit++ {
		v /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGT"[unit-1])
}

func sortedKeys(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
