package pdctl_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/observe/doctor"
	"github.com/pdmesh/pdmesh/internal/pdctl"
	"github.com/pdmesh/pdmesh/sim/testkit"
)

var (
	call = regexp.MustCompile(`^\s*(?:\$ )?(?:bin/)?pdctl (\S.*)$`)
	word = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)
	// inner matches a command substitution.
	inner = regexp.MustCompile(`\$\([^)]*\)`)
)

// arguments splits a line as a shell does, as far as the pages need it. nil: no call of pdctl.
func arguments(line string) []string {
	m := call.FindStringSubmatch(line)
	if m == nil {
		return nil
	}
	var args []string
	for _, w := range word.FindAllString(inner.ReplaceAllString(m[1], "1"), -1) {
		if strings.HasPrefix(w, "#") || strings.HasPrefix(w, "|") || strings.HasPrefix(w, ">") || w == "<" || w == "&&" || w == "2>/dev/null" {
			break
		}
		args = append(args, strings.Trim(w, `"'`))
	}
	return args
}

// pdctl accepts every call on the pages.
func TestDocs_Commands(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	calls := 0
	for _, page := range append(pages, "../../README.md") {
		text := testkit.ReadFile(t, page)
		for i, block := range strings.Split(string(text), "```") {
			if i%2 == 0 {
				continue
			}
			for line := range strings.Lines(block) {
				args := arguments(strings.TrimRight(line, "\n"))
				if args == nil {
					continue
				}
				calls++
				assert.NoError(t, pdctl.Parse(args), "%s: %q", page, args)
			}
		}
	}
	assert.GreaterOrEqual(t, calls, 25, "only %d calls found", calls)
}

// Every command has examples, and accepts them.
func TestExamples(t *testing.T) {
	t.Parallel()
	for name, text := range pdctl.AllExamples() {
		calls := 0
		for line := range strings.Lines(text) {
			args := arguments(strings.TrimRight(line, "\n"))
			if args == nil {
				t.Errorf("%s: %q is no call", name, line)
				continue
			}
			assert.NoError(t, pdctl.Parse(args), "%s: %q", name, args)
			if strings.Contains("pdctl "+strings.Join(args, " "), strings.TrimPrefix(name, "pdctl ")) {
				calls++
			}
		}
		assert.NotEqual(t, 0, calls, "%s has no example of itself", name)
	}
}

// The table of exit codes on the page equals that of the code.
func TestExitCodes_Documented(t *testing.T) {
	t.Parallel()
	page := testkit.ReadFile(t, "../../docs/cli.md")
	_, help, _ := execute(t.Context(), nil, "drain", "--help")
	for _, code := range []string{"0", "3", "4"} {
		assert.True(t, strings.Contains(string(page), "\n| "+code+" | ") && strings.Contains(help, "\n  "+code+"  "),
			"exit code %s is not on the page, or not in the help", code)
	}
}

// The page has every check of doctor, in the same words.
func TestDoctorPage_ListsAllChecks(t *testing.T) {
	t.Parallel()
	page := testkit.ReadFile(t, "../../docs/cli.md")
	for _, c := range doctor.Checks() {
		assert.Contains(t, string(page), "\n| `"+c.Name+"` | "+c.Description+" |",
			"check %s is not on the page, or says something else", c.Name)
	}
	assert.Contains(t, string(page), "5: errors or warnings")
}
