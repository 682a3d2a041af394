package show

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/pdctl/output"
)

func listTable(entries []*listed, wide bool) table.Writer {
	var header table.Row
	rows := make([]table.Row, len(entries))
	for _, c := range columns() {
		if c.wide && !wide {
			continue
		}
		header = append(header, c.name)
		for i, e := range entries {
			rows[i] = append(rows[i], cmp.Or(c.cell(e), "-"))
		}
	}
	t := output.NewTable(header...)
	t.AppendRows(rows)
	return t
}

// sortBy sorts entries by a column, numbers and ages by size, otherwise in the order of the text.
func sortBy(entries []*listed, name string) error {
	if name == "" {
		return nil
	}
	wanted := strings.NewReplacer("-", " ", "_", " ").Replace(strings.ToUpper(name))
	var known []string
	for _, c := range columns() {
		if c.name != wanted {
			known = append(known, strings.ReplaceAll(strings.ToLower(c.name), " ", "-"))
			continue
		}
		slices.SortStableFunc(entries, func(a, b *listed) int {
			if c.name == "AGE" { // the youngest first, those without an age last
				return cmp.Compare(b.started(), a.started())
			}
			x, y := c.cell(a), c.cell(b)
			n, errX := strconv.ParseInt(x, 10, 64)
			m, errY := strconv.ParseInt(y, 10, 64)
			if errX == nil && errY == nil {
				return cmp.Compare(n, m)
			}
			return cmp.Compare(x, y)
		})
		return nil
	}
	return cli.Wrongf("--sort-by %q: use one of %s", name, strings.Join(known, ", "))
}
