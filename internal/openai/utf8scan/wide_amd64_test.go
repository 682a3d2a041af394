//go:build !purego

package utf8scan

import "golang.org/x/sys/cpu"

// wide tells that blocks has to pass something.
func wide() bool { return cpu.X86.HasAVX2 }
