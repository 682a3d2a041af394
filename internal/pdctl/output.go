package pdctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// The forms of what is printed (-o).
const (
	outputTable = "table"
	outputWide  = "wide"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

func outputs() []string { return []string{outputTable, outputWide, outputJSON, outputYAML} }

func (a *app) checkOutput() error {
	if !slices.Contains(outputs(), a.output) {
		return usagef("-o %q: use one of %s", a.output, strings.Join(outputs(), ", "))
	}
	return nil
}

// structured tells that programs read what is printed.
func (a *app) structured() bool { return a.output == outputJSON || a.output == outputYAML }

func (a *app) wide() bool { return a.output == outputWide }

// write prints one value for programs, as the output wants it.
func (a *app) write(v any) error {
	if a.output == outputJSON {
		return writeJSON(a.stdout, v)
	}
	var b bytes.Buffer
	if err := writeJSON(&b, v); err != nil {
		return err
	}
	return a.writeYAML(b.Bytes())
}

// writeYAML prints JSON as YAML, its members in the same order.
func (a *app) writeYAML(text []byte) error {
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
	if _, err := a.stdout.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// block has a document written over lines, and its strings without the quotes of JSON
// where they need none.
func block(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		block(c)
	}
}

// writeLine prints one of many values: a line of JSON, or a document of YAML.
func (a *app) writeLine(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if a.output == outputJSON {
		return a.println(string(line))
	}
	if err := a.println("---"); err != nil {
		return err
	}
	return a.writeYAML(line)
}

// textOnly refuses the forms that a command does not have.
func (a *app) textOnly(what string) error {
	if a.output != outputTable {
		return usagef("-o %s: %s", a.output, what)
	}
	return nil
}

func completeOutputs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return outputs(), cobra.ShellCompDirectiveNoFileComp
}

// writeRaw prints what is JSON already.
func (a *app) writeRaw(text []byte) error {
	if a.output == outputYAML {
		return a.writeYAML(text)
	}
	if _, err := a.stdout.Write(text); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}
