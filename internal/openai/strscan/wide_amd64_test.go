//go:build !purego

package strscan

import "golang.org/x/sys/cpu"

// wide tells that blocks has to pass something.
func wide() bool { return cpu.X86.HasAVX2 }
