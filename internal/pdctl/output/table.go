package output

import (
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// List prints a value in a structured format, otherwise its table, or a text if the table has no rows.
func (p *Printer) List(value any, t table.Writer, empty string) error {
	switch {
	case p.Structured():
		return p.Write(value)
	case t.Length() == 0:
		return p.Println(empty)
	}
	return p.Println(t.Render())
}

// NewTable returns a table without borders, so that its lines suit cut and grep.
func NewTable(header ...any) table.Writer {
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
