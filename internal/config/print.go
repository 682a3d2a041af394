package config

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// masked stands for a secret in what is printed; its length says nothing.
const masked = "********"

// Print writes the configuration as a YAML file that --config would read, a
// remark behind every value that is no default. Secrets are masked.
func (p *Proxy) Print(w io.Writer) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, s := range proxySettings() {
		if s.flagOnly {
			continue
		}
		node := render(s, s.field(p))
		node.LineComment = p.sources[s.name]
		root.Content = append(root.Content, scalarNode(s.name), node)
	}
	enc := yaml.NewEncoder(w)
	if err := enc.Encode(root); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	if err := enc.Close(); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return nil
}

func render(s setting, field any) *yaml.Node {
	var items []string
	switch v := field.(type) {
	case *JSONList:
		items = *v
	case *[]string:
		items = *v
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
		if s.secret && *v != "" {
			return scalarNode(masked)
		}
		return scalarNode(*v)
	}
	if items == nil {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, item := range items {
		if s.secret {
			item = masked
		}
		list.Content = append(list.Content, scalarNode(item))
	}
	return list
}

// scalarNode leaves the quotes to the encoder, except where YAML would read
// plain text as something else.
func scalarNode(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if text == "" || strings.ContainsAny(text, "#\"'{}[]&*!|>%@`") || strings.TrimSpace(text) != text {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

// formatSize writes a size in the largest unit it is a whole number of.
func formatSize(n int64) string {
	units := []string{"", "KiB", "MiB", "GiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i+1 < len(units) {
		n /= 1024
		i++
	}
	return fmt.Sprint(n) + units[i]
}
