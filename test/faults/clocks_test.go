package faults_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/discovery/watch"
	"github.com/pdmesh/pdmesh/sim/testkit/etcdtest"
	"github.com/pdmesh/pdmesh/sim/testkit/members"
)

// foreignTimes are the fields that hold a time of another process's clock.
var foreignTimes = map[string]bool{"StartedAt": true}

// comparisons are the methods and functions that compare two times.
var comparisons = map[string]bool{"Before": true, "After": true, "Sub": true, "Compare": true, "Since": true, "Until": true}

// compared returns the positions at which a source file compares a time of another process.
// Tests for equality do not count.
func compared(name string, src any) ([]string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, src, 0)
	if err != nil {
		return nil, err
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !comparisons[sel.Sel.Name] {
			return true
		}
		foreign := false
		for _, e := range append([]ast.Expr{sel.X}, call.Args...) {
			ast.Inspect(e, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && foreignTimes[s.Sel.Name] {
					foreign = true
				}
				return true
			})
		}
		if foreign {
			found = append(found, set.Position(call.Pos()).String())
		}
		return true
	})
	return found, nil
}

// Clock skew between hosts has no effect, because no time of another process is ever compared:
// neither in the sources nor in the watcher's handling of a record.
func TestFault25_Clocks(t *testing.T) {
	row(t, 25)
	planted := "package p\nfunc f() bool { return time.Since(*rec.StartedAt) > 0 || now.Before(*in.Record.StartedAt) }"
	if found, err := compared("planted.go", planted); err != nil || len(found) != 2 {
		t.Fatalf("the search does not find the planted comparisons: %v, %v", found, err)
	}
	files := 0
	for _, dir := range []string{"cmd", "internal", "sim"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files++
			found, err := compared(path, nil)
			for _, at := range found {
				t.Errorf("%s compares the clocks of two processes", at)
			}
			return err
		})
		require.NoError(t, err)
	}
	assert.GreaterOrEqual(t, files, 50, "only %d files were searched", files)

	etcd := etcdtest.Start(t)
	cli, l := etcd.Client(t), members.Layout(t)
	w := watching(t, members.Dial(t, etcd.Endpoint()), quick())
	for i, off := range []time.Duration{-time.Hour, time.Hour, 24 * 365 * 50 * time.Hour} {
		members.Put(t, cli, l.Instance(prefillAt(i)), fmt.Sprintf(
			`{"v":1,"id":"A","models":["m"],"state":"ready","started_at":%q}`, time.Now().Add(off).Format(time.RFC3339)))
		awaitUsable(t, w, prefillAt(i))
	}
	members.WaitState(t, w, watch.Live)
}
