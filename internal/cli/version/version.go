// Package version has the version number of all programs.
package version

import (
	"regexp"
	"runtime/debug"
	"strings"
)

// Version is the release that this tree builds.
const Version = "0.1.0"

// commit is set by the linker: -X .../internal/cli/version.commit=...
var commit string //nolint:gochecknoglobals // the linker's

// String returns Version, with the commit or tag of the build in parentheses if it is known.
func String() string {
	from := commit
	if from == "" {
		if info, ok := debug.ReadBuildInfo(); ok {
			from = source(info)
		}
	}
	if from == "" {
		return Version
	}
	return Version + " (" + from + ")"
}

// pseudo matches the pseudo-version of a commit without a tag, which ends with the
// time and the first digits of the commit.
var pseudo = regexp.MustCompile(`[-.]\d{14}-([0-9a-f]{12})$`)

// source returns the commit of a build in a clone. A program of go install has only
// the module's version: source then returns the commit in it, or the tag if it differs
// from this release.
func source(info *debug.BuildInfo) string {
	var c string
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			c = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if c != "" {
		return c + dirty
	}
	switch module := info.Main.Version; {
	case module == "" || module == "(devel)" || module == "v"+Version:
		return ""
	case pseudo.MatchString(module):
		return pseudo.FindStringSubmatch(module)[1]
	default:
		return strings.TrimPrefix(module, "v")
	}
}
