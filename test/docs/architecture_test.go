package docs_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The names in the walks of docs/architecture.md and in its table of files to change exist.
func TestArchitecture_NamesExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	_, rest, one := strings.Cut(string(page), "\n## One request\n")
	walks, rest, where := strings.Cut(rest, "\n## Where do I change ...\n")
	table, _, words := strings.Cut(rest, "\n## Words\n")
	if !one || !where || !words {
		t.Fatal("docs/architecture.md has no walk, table or words at the expected position")
	}
	names := declared(t, "../../internal")
	checked := 0
	for i, block := range strings.Split(walks, "```") {
		if i%2 == 0 {
			continue
		}
		for _, name := range namesIn(block) {
			checked++
			if !names.has(name) {
				t.Errorf("a walk names %s, which does not exist in internal", name)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d names of the walks were checked", checked)
	}
	rows := 0
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(row, "|\n "), " | ")
		if len(cells) != 3 || cells[0] == "what" {
			continue
		}
		rows++
		names.checkCell(t, cells[0], cells[1])
		names.checkCell(t, cells[0], cells[2])
	}
	if rows < 15 {
		t.Errorf("only %d rows of the table were checked", rows)
	}
}

// namesIn returns the words that can only be names: those with a dot or a capital letter inside.
func namesIn(block string) []string {
	var out []string
	for _, word := range regexp.MustCompile(`[A-Za-z][\w/.]*\w`).FindAllString(block, -1) {
		switch {
		case strings.Contains(word, "/"), strings.HasSuffix(word, ".go"):
			if strings.HasSuffix(word, ".go") || strings.HasPrefix(word, "internal/") {
				out = append(out, word)
			}
		case strings.Contains(word, "."), regexp.MustCompile(`[a-z][A-Z]`).MatchString(word):
			out = append(out, word)
		}
	}
	return out
}

// declarations is the set of names in a tree of packages: pkg.Name and pkg.Type.Member, Name and Type.Member
// without the package, and all suffixes of the paths of files and directories.
type declarations map[string]bool

func (d declarations) has(name string) bool { return d[name] }

func declared(t *testing.T, root string) declarations {
	t.Helper()
	d := declarations{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		slashed := "internal" + strings.TrimPrefix(filepath.ToSlash(file), filepath.ToSlash(root))
		for at := slashed; at != ""; _, at, _ = strings.Cut(at, "/") {
			d[at] = true
		}
		if e.IsDir() || !strings.HasSuffix(file, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		note := func(name string) {
			d[name] = true
			d[f.Name.Name+"."+name] = true
		}
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				note(decl.Name.Name)
				if decl.Recv != nil {
					note(receiver(decl.Recv.List[0].Type) + "." + decl.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					noteSpec(spec, note)
				}
			}
		}
		return nil
	})
	require.NoError(t, err)
	return d
}

func noteSpec(spec ast.Spec, note func(string)) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, n := range spec.Names {
			note(n.Name)
		}
	case *ast.TypeSpec:
		note(spec.Name.Name)
		var members *ast.FieldList
		switch is := spec.Type.(type) {
		case *ast.StructType:
			members = is.Fields
		case *ast.InterfaceType:
			members = is.Methods
		default:
			return
		}
		for _, m := range members.List {
			for _, n := range m.Names {
				note(spec.Name.Name + "." + n.Name)
				note(n.Name)
			}
		}
	}
}

// receiver returns the name of a receiver's type, without pointer and type parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	default:
		return ""
	}
}

// checkCell checks that every quoted name in a cell of the table exists: paths, relative to the repository,
// to internal or to a directory named earlier in the cell; tests; and other names.
func (d declarations) checkCell(t *testing.T, row, cell string) {
	t.Helper()
	folders := []string{"", "internal"}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		words := strings.Fields(strings.TrimPrefix(m[1], "go test "))
		is := strings.TrimSuffix(strings.TrimPrefix(words[0], "./"), "/...")
		if strings.HasPrefix(is, "-") || strings.HasPrefix(is, "/") { // flag or route
			continue
		}
		if is == "make" && len(words) > 1 && makeTarget(t, words[1]) {
			continue
		}
		found := false
		for _, folder := range folders {
			at, err := filepath.Glob(filepath.Join("../..", folder, is))
			require.NoError(t, err)
			if found = len(at) > 0; found {
				is = path.Join(folder, is)
				break
			}
		}
		if found {
			for at := is; at != "." && !slices.Contains(folders, at); at = path.Dir(at) {
				folders = append(folders, at)
			}
			continue
		}
		if !d.has(is) {
			t.Errorf("%s: %s is neither a file, a directory nor a name in internal", row, m[0])
		}
	}
}

// makeTarget reports whether the Makefile has a target.
func makeTarget(t *testing.T, target string) bool {
	t.Helper()
	file, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	return bytes.Contains(file, []byte("\n"+target+":"))
}
