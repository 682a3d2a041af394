// Package output prints the results of commands: tables, and JSON and YAML for programs. It also
// has the names for states and values that all commands share.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pdmesh/pdmesh/internal/cli"
)

// The output formats (-o).
const (
	Table = "table"
	Wide  = "wide"
	JSON  = "json"
	YAML  = "yaml"
	Name  = "name" // role/host:port of each instance, one on a line
)

// Printer prints the results of a command. After an error it prints nothing more on stdout.
type Printer struct {
	Stdout, Stderr io.Writer
	Format         string // one of the formats above
	err            error  // first error of Stdout
}

func forms() []string { return []string{Table, Wide, JSON, YAML, Name} }

// Check returns an error if the format is unknown.
func (p *Printer) Check() error {
	if !slices.Contains(forms(), p.Format) {
		return cli.Wrongf("-o %q: use one of %s", p.Format, strings.Join(forms(), ", "))
	}
	return nil
}

// Structured reports whether the output is for programs: JSON or YAML.
func (p *Printer) Structured() bool { return p.Format == JSON || p.Format == YAML }

// Write prints one value in the selected structured format. '<' and '&' stay as they are, because
// the output is not HTML.
func (p *Printer) Write(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return p.WriteRaw(b.Bytes())
}

// writeYAML prints JSON as YAML, its members in the same order.
func (p *Printer) writeYAML(text []byte) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil { // JSON is YAML
		return fmt.Errorf("write output: %w", err)
	}
	block(&doc)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return p.print(b.Bytes())
}

// block removes the styles that come from JSON, so that the document has several lines, and
// strings have quotes only where they need them.
func block(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

// WriteLine prints one of many values: a line of JSON, or a document of YAML.
func (p *Printer) WriteLine(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if p.Format == JSON {
		return p.Println(string(line))
	}
	if err := p.Println("---"); err != nil {
		return err
	}
	return p.writeYAML(line)
}

// TextOnly returns an error unless the format is Table. It is for commands without other formats.
func (p *Printer) TextOnly(what string) error {
	if p.Format != Table {
		return cli.Wrongf("-o %s: %s", p.Format, what)
	}
	return nil
}

// Complete returns the formats for shell completion.
func Complete(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return forms(), cobra.ShellCompDirectiveNoFileComp
}

// WriteRaw prints a value that is JSON already.
func (p *Printer) WriteRaw(text []byte) error {
	if p.Format == YAML {
		return p.writeYAML(text)
	}
	return p.print(text)
}

// Println prints a line. It returns the first error of the output, like Err.
func (p *Printer) Println(line string) error { return p.print([]byte(line + "\n")) }

// Printf prints a part of the output. Err returns its error.
func (p *Printer) Printf(format string, args ...any) { _ = p.print(fmt.Appendf(nil, format, args...)) }

// Err returns the first error of the output.
func (p *Printer) Err() error { return p.err }

func (p *Printer) print(text []byte) error {
	if p.err == nil {
		if _, err := p.Stdout.Write(text); err != nil {
			p.err = fmt.Errorf("write output: %w", err)
		}
	}
	return p.err
}
