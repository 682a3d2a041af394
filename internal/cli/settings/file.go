package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// maxFileBytes is the largest configuration file.
const maxFileBytes = 1 << 20

// readFile reads a YAML file of these settings. Values keep their text, so that a password of
// digits is unchanged.
func (t Table) readFile(path string) (map[string]any, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	if len(raw) > maxFileBytes {
		return nil, fmt.Errorf("--config: %s is larger than %d bytes", path, maxFileBytes)
	}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil // an empty file sets nothing
	} else if err != nil {
		return nil, fmt.Errorf("--config: %s: %w", path, err)
	}
	for {
		var more yaml.Node
		if err := dec.Decode(&more); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("--config: %s: %w", path, err)
		}
		if more.Content[0].ShortTag() != "!!null" {
			return nil, fmt.Errorf("--config: %s: has more than one YAML document: put all settings into one", path)
		}
	}
	root := doc.Content[0]
	if root.ShortTag() == "!!null" {
		return nil, nil // nothing but comments
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("--config: %s: line %d: want one \"name: value\" per setting", path, root.Line)
	}
	out := make(map[string]any)
	var errs []error
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], root.Content[i+1]
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("--config: %s: line %d: %w", path, key.Line, fmt.Errorf(format, args...)))
		}
		if s, ok := t.Find(key.Value); !ok || s.FlagOnly {
			fail("unknown key %q%s", instance.Printable(key.Value, 80), t.suggestion(key.Value))
			continue
		}
		if _, twice := out[key.Value]; twice {
			fail("duplicate key %q", key.Value)
			continue
		}
		value, ok := nodeValue(node)
		if !ok {
			fail("%s: want a plain value or a list of plain values", key.Value)
			continue
		}
		if value != nil {
			out[key.Value] = value
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// nodeValue returns a string, a []string, or nil for null.
func nodeValue(node *yaml.Node) (any, bool) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.ScalarNode:
		if node.ShortTag() == "!!null" {
			return nil, true
		}
		return node.Value, true
	case yaml.SequenceNode:
		list := make([]string, 0, len(node.Content))
		for _, item := range node.Content {
			if item.Kind == yaml.AliasNode {
				item = item.Alias
			}
			if item.Kind != yaml.ScalarNode {
				return nil, false
			}
			list = append(list, item.Value)
		}
		return list, true
	}
	return nil, false
}

// suggestion returns a hint at the key that was probably meant.
func (t Table) suggestion(name string) string {
	var names []string
	for _, s := range t {
		if !s.FlagOnly && !s.Hidden {
			names = append(names, s.Name)
		}
	}
	if best := Closest(names, name); best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	return "; the names are those of the flags, see --help"
}

// Closest returns the name that was probably meant: the same one with other separators or
// case, or with up to two different letters; "" if there is none.
func Closest(names []string, typed string) string {
	return closest(names, strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(typed)))
}

// closest returns the name with the smallest distance, "" if none is within two letters.
func closest(names []string, plain string) string {
	best, bestDistance := "", 3
	for _, name := range names {
		if d := distance(plain, name); d < bestDistance && d < len(name) {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance returns the Levenshtein distance of a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
