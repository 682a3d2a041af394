package deploy_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

// composeWarnings loads a file as docker compose does, with the options of its
// command line, and returns what a user would read above the output. It replaces
// the library's logger, so no test that calls it may run beside another.
func composeWarnings(t *testing.T, raw []byte, profiles ...string) []string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, composeFile)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	hook := logtest.NewGlobal()
	logrus.SetOutput(io.Discard)
	defer func() {
		logrus.StandardLogger().ReplaceHooks(make(logrus.LevelHooks))
		logrus.SetOutput(os.Stderr)
	}()
	// Nothing of this machine's environment: a user has set none of our variables.
	options, err := cli.NewProjectOptions([]string{path}, cli.WithWorkingDirectory(dir), cli.WithProfiles(profiles))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := options.LoadProject(t.Context()); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, e := range hook.AllEntries() {
		if e.Level <= logrus.WarnLevel {
			said = append(said, e.Message)
		}
	}
	return said
}

// A user must not meet a warning before the first line of a log.
func TestComposeLoadsWithoutWarning(t *testing.T) {
	raw := read(t, composeFile)
	for _, profiles := range [][]string{nil, {"vllm"}, {"agents"}, {"vllm", "agents"}, {"*"}} {
		if said := composeWarnings(t, raw, profiles...); len(said) > 0 {
			t.Errorf("profiles %v: %q", profiles, said)
		}
	}
	// What a warning looks like, so that their absence means something.
	for name, change := range map[string][2]string{
		"unset variable": {"${HF_TOKEN:-}", "${HF_TOKEN}"},
		"old version":    {"name: pdmesh\n", "version: \"3\"\nname: pdmesh\n"},
	} {
		broken := strings.Replace(string(raw), change[0], change[1], 1)
		if broken == string(raw) {
			t.Fatalf("%s: %q is not in the file", name, change[0])
		}
		if said := composeWarnings(t, []byte(broken), "*"); len(said) == 0 {
			t.Errorf("%s: no warning", name)
		}
	}
}
