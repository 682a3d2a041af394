package settings

import (
	"fmt"
	"strings"
)

// Reference returns the table as Markdown, with a heading of that depth for each group.
func (t Table) Reference(depth int) string {
	var out strings.Builder
	for i, group := 0, "\x00"; i < len(t); i++ {
		s := t[i]
		if s.Hidden {
			continue
		}
		if s.Group != group {
			group = s.Group
			fmt.Fprintf(&out, "\n%s %s\n\n| setting | takes | default | variable | |\n|---|---|---|---|---|\n", strings.Repeat("#", depth), group)
		}
		name := code(s.Name)
		if s.FlagOnly {
			name = code("--" + s.Name)
		} else if s.Short != "" {
			name += ", " + code("-"+s.Short)
		}
		var variables []string
		for _, v := range s.variables() {
			variables = append(variables, code(v))
		}
		def := ""
		if s.Default != "" {
			def = code(s.Default)
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", name, plain(string(s.Kind)), def, strings.Join(variables, ", "), plain(s.Usage))
	}
	return out.String()
}

// code returns the text of a cell as code.
func code(text string) string { return "`" + strings.ReplaceAll(text, "|", `\|`) + "`" }

// plain escapes the text of a cell.
func plain(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "[", `\[`).Replace(text)
}
