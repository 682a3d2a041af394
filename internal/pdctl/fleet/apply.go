package fleet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/connector"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/instance"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const applyHelp = `apply makes static instances, intents, limits of keys and model routes as a YAML or JSON file
declares them. If they are so already, it writes nothing, so it can be repeated. FILE can be -
for standard input. "pdctl export" prints the file of the current fleet.

  statics:                       # instances without an agent, as pdctl add writes them
    decode/10.0.0.8:8200: {connector: nixl, models: [Qwen/Qwen2.5-7B-Instruct]}
  intents:                       # state drain, cordon or removed; weight 0 to 10000
    prefill/10.0.0.7:8100: {state: cordon, reason: new disks}
  limits:                        # rpm, input_tpm, output_tpm, uncached_tpm, concurrent
    team-a: {rpm: 600, concurrent: 50}
  models:                        # routes: sticky session, key or none; weights as of pdctl model
    chat: {targets: [{model: new, weight: 80}, {model: old, weight: 20}]}

A field that apply does not know, or a wrong value, is an error: it lists the known fields,
nothing is written, and the exit code is 2.

To bring the fleet back to a file, use --prune: without it, what the file does not have stays.
A section that is left out is not changed. --prune deletes what a section of the file does
not have. Instances of agents and of the command lines of proxies, intents of pdctl role, and
what has a time limit (--for), are never deleted. If the file has only a weight for an engine
that pdctl role keeps in one role, the role stays. A state of the file replaces it.

The changes are one transaction with one audit entry (one for each 100 keys or 1 MiB, if there
is more). If another program changes a key meanwhile, nothing is written, the error names the
key, and the exit code is 1. If that happens after the first transaction, the error has the
number of changes that were written, and repeating the command writes the others. "pdctl revert"
undoes an apply.`

const exportHelp = `export prints what operators have set as a file for "pdctl apply": static instances,
intents (drains, cordons, removals, weights), limits of keys and model routes. It has no
secrets.

Left out without a line on stderr are instances of agents and of the command lines of proxies,
which register again by themselves, and roles that proxies chose (--auto-roles). Left out with
a line are roles of "pdctl role", what has a time limit (--for, add --wait), and values that
this pdctl does not understand.`

// Export returns the command export.
func Export(s *session.Session) *cobra.Command {
	return &cobra.Command{
		Use: "export", Short: "print what operators have set as a file for apply", Long: exportHelp,
		Example: "  pdctl export > fleet.yaml\n  pdctl export | pdctl apply --etcd-endpoints 10.0.0.1:2379 -f -",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.With(cmd.Context(), func(conn *session.Conn) error {
				now, err := conn.Store.Edits.Read(cmd.Context())
				if err != nil {
					return s.Hint(err)
				}
				proxies, err := conn.Store.Reader.Proxies(cmd.Context())
				if err != nil && !session.RefusedUser(err) {
					return s.Hint(err)
				}
				s.NoteKept(proxies, "")
				return exportFile(s, now)
			})
		},
	}
}

// Apply returns the command apply.
func Apply(s *session.Session) *cobra.Command {
	var file string
	var prune bool
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "make the fleet as a file declares it", Long: applyHelp,
		Example: "  pdctl apply -f fleet.yaml --dry-run\n  pdctl apply -f fleet.yaml --prune --reason \"rack 4\"",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return cli.Wrongf("name a file with -f")
			}
			d, err := open(cmd.Context(), file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			return s.With(cmd.Context(), func(conn *session.Conn) error {
				now, err := conn.Store.Edits.Read(cmd.Context())
				if err != nil {
					return s.Hint(err)
				}
				values, err := d.changes(s, now, prune)
				if err != nil {
					return err
				}
				if err := d.conflict(cmd.Context(), s, conn, values); err != nil {
					return err
				}
				return write(cmd.Context(), s, conn, now, values, "apply")
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&file, "filename", "f", "", "file that declares the fleet, - for standard input")
	fs.BoolVar(&prune, "prune", false, "delete what a section of the file does not have")
	return s.Audits(cmd)
}

// declared has the sections of a file, by name, and the values in each, by the name of the
// instance or the document.
type declared map[string]map[string]json.RawMessage

// The sections of a file.
const (
	statics = "statics"
	intents = "intents"
)

// section returns the section of a key and its name in that section, "" for keys without a section.
func section(n schema.Name) (string, string) {
	k := n.Key
	switch n.Kind {
	case schema.KindInstance:
		return statics, k.String()
	case schema.KindOverride:
		return intents, k.String()
	case schema.KindDocument:
		return string(n.Role), n.Address
	}
	return "", ""
}

// keyOf is the inverse of section. It returns the key below the root.
func keyOf(section, name string) string {
	switch section {
	case statics:
		return name
	case intents:
		return "override/" + name
	}
	return section + "/" + name
}

// open reads a file.
func open(ctx context.Context, path string, stdin io.Reader) (declared, error) {
	text, err := session.ReadFile(ctx, path, stdin)
	if err != nil {
		return nil, err
	}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	var file yaml.Node
	if err := documents.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, cli.Wrongf("%s: %w", path, err)
	}
	doc, err := asMap[yaml.Node](&file, "the file must be a map of sections")
	if err != nil {
		return nil, cli.Wrongf("%s: %w", path, err)
	}
	if err := documents.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, cli.Wrongf("%s: has more than one YAML document: put all sections into one", path)
	}
	d := declared{}
	for sec, node := range doc {
		d[sec] = map[string]json.RawMessage{}
		if sec != statics && sec != intents && sec != string(schema.Limits) && sec != string(schema.Models) {
			return nil, cli.Wrongf("%s: unknown section %q: use %s, %s, %s or %s", path, instance.Printable(sec, 80), statics, intents, schema.Limits, schema.Models)
		}
		values, err := asMap[any](&node, sec+": must be a map")
		if err != nil {
			return nil, cli.Wrongf("%s: %w", path, err)
		}
		for name, value := range values {
			raw, err := json.Marshal(value)
			if _, wrong := errors.AsType[*json.UnsupportedTypeError](err); wrong { // a map with other keys
				err = errors.New("names of fields must be strings: put numbers in quotes")
			}
			if sec == statics && value == nil {
				raw = nil // like an empty value in etcd
			}
			if err == nil {
				d[sec][name], err = normal(sec, name, raw)
			}
			if err != nil {
				return nil, cli.Wrongf("%s: %s: %s: %w", path, sec, instance.Printable(name, 300), err)
			}
		}
	}
	return d, nil
}

// asMap decodes a YAML map. wrong replaces yaml's error about another type, which names Go types. A name
// that is null is an error, because yaml leaves its value out.
func asMap[T any](node *yaml.Node, wrong string) (m map[string]T, err error) {
	if err = node.Decode(&m); err != nil && strings.Contains(err.Error(), " into map[") {
		return nil, errors.New(wrong)
	}
	if node.Kind == yaml.DocumentNode {
		node = node.Content[0]
	}
	names := cmp.Or(node.Alias, node).Content // names and values in turn
	for i := 0; err == nil && i < len(names); i += 2 {
		if names[i].ShortTag() == "!!null" {
			err = fmt.Errorf("line %d: a name is missing: write null and ~ in quotes", names[i].Line)
		}
	}
	return m, err
}

// normal checks a value of a file or of etcd, and returns it in the form to compare and to write.
func normal(section, name string, raw []byte) (json.RawMessage, error) {
	role, address, _ := strings.Cut(name, "/")
	k := instance.Key{Role: instance.Role(role), Address: address}
	document := instance.Key{Role: instance.Role(section), Address: name}
	switch section {
	case statics:
		rec, bare, err := schema.DecodeRecord(k, raw) // a bare value is an address, or empty
		if !bare && (err == nil || raw[0] == '{') {
			rec = instance.Record{}
			err = cmp.Or(decode(raw, &rec), err)
		}
		if err != nil {
			return nil, err
		}
		if rec.Weight != nil && !instance.ValidWeight(*rec.Weight) {
			return nil, errWeight
		}
		if _, err := connector.OfRecord(&rec, connector.Names()[0]); err != nil {
			return nil, err
		}
		return store.StaticValue(k, rec)
	case intents:
		var o schema.Override
		if err := decode(raw, &o); err != nil {
			return nil, err
		}
		if o.V = 1; o.State == "" && o.Weight == nil {
			return nil, errors.New("it has neither a state nor a weight")
		}
		if o.Weight != nil && !instance.ValidWeight(*o.Weight) {
			return nil, errWeight
		}
		if _, err := schema.DecodeOverride(raw); err != nil {
			return nil, err
		}
		if err := store.CheckKey(k); err != nil {
			return nil, err
		}
		o.By = ""
		return schema.Encode(o)
	case string(schema.Models):
		r := schema.ModelRoute{V: 1}
		if err := errors.Join(decode(raw, &r), schema.CheckDocument(document, []byte("{}"))); err != nil {
			return nil, err
		}
		if err := r.Check(); err != nil {
			return nil, err
		}
		return schema.Encode(r)
	}
	l := instance.KeyLimits{V: 1}
	if err := decode(raw, &l); err != nil {
		return nil, err
	}
	if err := instance.CheckSet(raw); err != nil {
		return nil, err
	}
	if !instance.ValidKeyName(name) {
		return nil, errors.New("the name of an API key has 1 to 64 visible ASCII characters without a slash")
	}
	if err := l.Check(); err != nil {
		return nil, err
	}
	return schema.Encode(l)
}

var errWeight = fmt.Errorf("weight: must be between 0 and %d", instance.MaxWeight)

// decode decodes a value of a file. The error about a wrong field names it and lists the known ones.
func decode(raw []byte, into any) error {
	if err := instance.DecodeStrict(raw, into); err != nil {
		return fmt.Errorf("%s; fields: %s", instance.JSONError(err), fieldNames(reflect.TypeOf(into).Elem()))
	}
	return nil
}

// fieldNames lists the JSON fields of a struct, those of a list of structs in parentheses.
func fieldNames(t reflect.Type) string {
	var names []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct {
			name += " (" + fieldNames(f.Type.Elem()) + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// changes returns the values to write, nil for keys to delete.
func (d declared) changes(s *session.Session, now *store.Fleet, prune bool) (map[string]*string, error) {
	values := map[string]*string{}
	same := map[string]bool{} // keys that stay as they are
	var kept []string         // keys that --prune would delete
	for _, n := range now.Keys() {
		sec, name := section(n)
		want, managed := d[sec]
		if !managed {
			continue
		}
		key := keyOf(sec, name)
		is, leased := now.Value(key)
		to, wanted := want[name]
		both, marked := withRole(sec, is, to)
		switch {
		case marked && leased:
			same[key] = true
			fmt.Fprintf(s.Out.Stderr, "%s: keeps an engine in one role for a time, not changed\n", instance.Printable(key, 300))
		case marked:
			want[name], same[key] = both, *is == string(both)
			fmt.Fprintf(s.Out.Stderr, "%s: keeps an engine in one role, which stays; the file sets its weight\n", instance.Printable(key, 300))
		case wanted && sec == statics && leased:
			same[key] = true
			fmt.Fprintf(s.Out.Stderr, "%s: registered by its agent, not changed\n", key)
		case wanted && !leased:
			if have, err := normal(sec, name, []byte(*is)); err == nil && bytes.Equal(have, to) {
				same[key] = true
			}
		case wanted, leased, foreign(sec, n, *is):
		case prune:
			values[key] = nil
		default:
			kept = append(kept, instance.Printable(key, 300))
		}
	}
	if len(kept) > 0 {
		fmt.Fprintf(s.Out.Stderr, "not in the file and not changed (--prune deletes them): %s\n", strings.Join(kept, ", "))
	}
	for sec, want := range d {
		for name, to := range want {
			key := keyOf(sec, name)
			if same[key] {
				continue
			}
			text := string(to)
			if sec == intents {
				var o schema.Override
				_ = json.Unmarshal(to, &o)           // normal has encoded it
				o.By = cmp.Or(o.By, session.Actor()) // an intent of pdctl role keeps its author
				by, err := schema.Encode(o)
				if err != nil {
					return nil, err
				}
				text = string(by)
			}
			values[key] = &text
		}
	}
	return values, nil
}

// withRole returns the present intent of a role change with the weight of the file. ok is false if
// the present intent is another one, or if the file sets a state.
func withRole(section string, is *string, to json.RawMessage) (both json.RawMessage, ok bool) {
	if section != intents || to == nil {
		return nil, false
	}
	o, err := schema.DecodeOverride([]byte(*is))
	file, ferr := schema.DecodeOverride(to)
	if err != nil || ferr != nil || o.Role == "" || file.State != "" {
		return nil, false
	}
	o.Weight = file.Weight
	both, err = schema.Encode(o)
	return both, err == nil
}

// conflict returns an error if a model route to be written has the name of a model that an engine
// serves.
func (d declared) conflict(ctx context.Context, s *session.Session, conn *session.Conn, values map[string]*string) error {
	seen, _, err := s.Seen(ctx, conn)
	for name, raw := range d[string(schema.Models)] {
		if err != nil || values[keyOf(string(schema.Models), name)] == nil {
			continue
		}
		var r schema.ModelRoute
		_ = json.Unmarshal(raw, &r) // normal has encoded it
		if why := r.Conflict(name, seen.All()); why != "" {
			err = nothing(fmt.Errorf("models: %s: %s", instance.Printable(name, 300), why))
		}
	}
	return err
}

// foreign reports whether a static instance is from the command lines of proxies, or an intent from
// a change of roles.
func foreign(section string, n schema.Name, value string) bool {
	switch section {
	case intents:
		o, err := schema.DecodeOverride([]byte(value))
		return err == nil && o.Role != ""
	case statics:
		rec, _, err := schema.DecodeRecord(n.Key, []byte(value))
		return err == nil && (len(rec.Proxies) > 0 || rec.Source == schema.SourceFlags)
	}
	return false
}

// again returns the commands that set a role and a weight again, without a role that a proxy has chosen.
func again(n schema.Name, value string) string {
	o, _ := schema.DecodeOverride([]byte(value)) // foreign has read it
	var commands []string
	if !o.Auto {
		commands = append(commands, fmt.Sprintf("pdctl role %s %s", o.Role, n.Address))
	}
	if o.Weight != nil {
		commands = append(commands, fmt.Sprintf("pdctl weight %s %s %d", n.Role, n.Address, *o.Weight))
	}
	return strings.Join(commands, "; ")
}

// exportFile prints the fleet as a file for -f.
func exportFile(s *session.Session, now *store.Fleet) error {
	out := declared{statics: {}, intents: {}, string(schema.Limits): {}, string(schema.Models): {}}
	for _, n := range now.Keys() {
		sec, name := section(n)
		if n.Kind == schema.KindPending {
			fmt.Fprintf(s.Out.Stderr, "%s/%s: left out: it waits for its instance; add it again\n", n.Role, instance.Printable(n.Address, 0))
		}
		if sec == "" {
			continue
		}
		value, leased := now.Value(keyOf(sec, name))
		if sec == statics && (leased || foreign(sec, n, *value)) {
			continue
		}
		raw, err := normal(sec, name, []byte(*value))
		if foreign(sec, n, *value) {
			commands := again(n, *value)
			if commands == "" {
				continue
			}
			err = fmt.Errorf("it keeps an engine in one role; set it again: %s", instance.Printable(commands, 0))
		}
		if leased {
			err = errors.New("it has a time limit")
		}
		if err != nil {
			fmt.Fprintf(s.Out.Stderr, "%s: left out: %v\n", instance.Printable(keyOf(sec, name), 0), err)
			continue
		}
		out[sec][name] = raw
	}
	if !s.Out.Structured() {
		s.Out.Format = "yaml"
	}
	return s.Out.Write(out)
}
