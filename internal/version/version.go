// Package version holds the one version number of the programs.
package version

import (
	"runtime/debug"
	"strings"
)

// Version is the release this tree builds.
const Version = "0.1.0"

// commit is set by the linker: -X .../internal/version.commit=...
var commit string //nolint:gochecknoglobals // the linker's

// String is Version and, when the build knows it, the commit it was built from.
func String() string {
	c := commit
	if c == "" {
		c = fromBuildInfo()
	}
	if c == "" {
		return Version
	}
	return Version + " (" + c + ")"
}

func fromBuildInfo() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var c string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			c = s.Value[:min(len(s.Value), 12)]
		case "vcs.modified":
			if s.Value == "true" {
				c = strings.TrimSuffix(c, "-dirty") + "-dirty"
			}
		}
	}
	return c
}
