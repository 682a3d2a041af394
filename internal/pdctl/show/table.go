package show

import (
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

// listTable shows every entry. Optional columns without any value are left out, unless it
// is wide.
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
			weighs = output.Weight(l.Weight)
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
			string(l.Role), instance.Printable(l.Address, 0), state, string(l.View), string(l.Intent), output.Kind(in),
			output.ShortModels(l.Models), l.Connector, ranks, weighs, l.Source, strings.Join(l.Proxies, ","), strconv.FormatInt(l.Revision, 10),
			instance.Printable(l.Reason, 200), in.Warning(connector),
		}
		if wide {
			row = append(row, l.Version, l.ID, output.Labels(in.Record.Labels), instance.Printable(in.Record.HostID, 80), output.LeaseName(in.Lease))
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
	t := output.NewTable(pick(header)...)
	for _, row := range rows {
		t.AppendRow(pick(row))
	}
	return t
}
