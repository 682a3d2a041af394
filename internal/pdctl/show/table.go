package show

import (
	"cmp"
	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

// listTable returns a table of every entry. Without wide, columns for which no entry has a value
// are omitted.
func listTable(snap *instance.Snapshot, connector string, wide bool) table.Writer {
	var entries []*listed
	for _, in := range snap.All() {
		entries = append(entries, &listed{in, in.Listed(connector)})
	}
	var header table.Row
	rows := make([]table.Row, len(entries))
	for _, c := range columns() {
		cells, used := make([]string, len(rows)), c.when == always || wide
		for i, e := range entries {
			cells[i] = c.cell(e)
			used = used || c.when == ifAny && cells[i] != ""
		}
		if !used {
			continue
		}
		header = append(header, c.name)
		for i, cell := range cells {
			cell = cmp.Or(cell, "-")
			rows[i] = append(rows[i], cell)
		}
	}
	t := output.NewTable(header...)
	t.AppendRows(rows)
	return t
}
