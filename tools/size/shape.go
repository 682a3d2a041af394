package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// shape is how code is divided: by what is named, how much of it there is.
type shape struct {
	methods   map[string]int // of a type, without those of what it embeds
	files     map[string]int // of a package
	functions map[string]int // lines, with those of the signature and the brace
}

// shapeOf reads source files, named relative to dir.
func shapeOf(dir string, files []string) (*shape, error) {
	s := &shape{methods: make(map[string]int), files: make(map[string]int), functions: make(map[string]int)}
	fset := token.NewFileSet()
	for _, name := range files {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("read the source: %w", err)
		}
		pkg := filepath.ToSlash(filepath.Dir(name))
		s.files[pkg]++
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			full := pkg + "." + fn.Name.Name
			if fn.Recv != nil {
				of := pkg + "." + receiver(fn.Recv.List[0].Type)
				s.methods[of]++
				full = of + "." + fn.Name.Name
			}
			s.functions[full] = max(s.functions[full], fset.Position(fn.End()).Line-fset.Position(fn.Pos()).Line+1)
		}
	}
	return s, nil
}

// receiver names a receiver's type, without pointer and type parameters.
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
		return fmt.Sprintf("%T", e)
	}
}

func (s *shape) write(w io.Writer) {
	fmt.Fprintf(w, "\n| of the product the largest | | |\n|---|---|---|\n")
	fmt.Fprintf(w, "| types | methods | %s |\n", largest(s.methods))
	fmt.Fprintf(w, "| packages | files | %s |\n", largest(s.files))
	fmt.Fprintf(w, "| functions | lines | %s |\n", largest(s.functions))
}

// largest spells the first few, those that are equal by name.
func largest(m map[string]int) string {
	names := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
	var out []string
	for _, name := range names[:min(len(names), 5)] {
		out = append(out, fmt.Sprintf("%s %d", name, m[name]))
	}
	return strings.Join(out, ", ")
}
