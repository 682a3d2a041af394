package settings

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// masked replaces a secret in the output, whatever its length.
const masked = "********"

// Print writes the settings as a YAML file for --config, with a comment after every value that
// is not a default. Secrets are masked and commented out. Remarks follow as comments. active
// returns the value of a setting, nil if it does not apply, and its source, "" for a default.
func (t Table) Print(w io.Writer, active func(Setting) (value any, from string), remarks ...string) error {
	var out strings.Builder
	for _, s := range t {
		value, from := active(s)
		if s.FlagOnly || s.Hidden && from == "" {
			continue
		}
		line, err := printLine(s, value, from)
		if err != nil {
			return fmt.Errorf("print configuration: %w", err)
		}
		out.WriteString(line)
	}
	for _, r := range remarks {
		out.WriteString("# " + instance.Printable(r, 0) + "\n")
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return nil
}

// printLine returns a setting as a line of YAML, or as a comment if it is a secret.
func printLine(s Setting, value any, from string) (string, error) {
	node := render(s, value)
	node.LineComment = instance.Printable(from, 0)
	line, err := yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{scalarNode(s.Name), node}})
	if s.Secret && strings.Contains(string(line), masked) {
		return "# " + string(line), err
	}
	return string(line), err
}

func render(s Setting, value any) *yaml.Node {
	var items []string
	switch v := value.(type) {
	case *JSONList:
		items = *v
	case *[]string:
		items = *v
	case []string:
		items = v
	case *[]netip.Prefix:
		for _, prefix := range *v {
			items = append(items, prefix.String())
		}
	case *bool:
		if *v {
			return scalarNode("on")
		}
		return scalarNode("off")
	case *time.Duration:
		return scalarNode(v.String())
	case *int:
		return scalarNode(fmt.Sprint(*v))
	case *int64:
		return scalarNode(formatSize(*v))
	case *string:
		return renderText(s, *v)
	case string:
		return renderText(s, v)
	}
	if items == nil {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, item := range items {
		if s.Secret {
			item = masked
		}
		list.Content = append(list.Content, scalarNode(item))
	}
	return list
}

func renderText(s Setting, text string) *yaml.Node {
	if s.Secret && text != "" {
		text = masked
	}
	if on, err := Switch(text); err == nil && s.Kind == OnOff {
		return render(s, &on)
	}
	return scalarNode(text)
}

// scalarNode leaves quoting to the encoder, except for text that YAML would read differently.
func scalarNode(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if text == "" || strings.ContainsAny(text, "#\"'{}[]&*!|>%@`") || strings.TrimSpace(text) != text {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// formatSize formats a size in the largest unit of which it is a multiple.
func formatSize(n int64) string {
	units := []string{"", "KiB", "MiB", "GiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i+1 < len(units) {
		n /= 1024
		i++
	}
	return fmt.Sprint(n) + units[i]
}
