// Package version holds the one version number of the programs.
package version

import (
	"runtime/debug"
	"strings"
)

// Version is the release this tree builds.
const Version = "0.1.0"

// String is Version and, when the build knows it, the commit it was built from.
func String() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Version
	}
	commit, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+changes"
			}
		}
	}
	if commit == "" {
		return Version
	}
	return strings.Join([]string{Version, " (", commit, dirty, ")"}, "")
}
