package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const head = "goos: linux\npkg: example.org/x/forward\n"

func lines(ns, b, allocs string) string {
	return "BenchmarkRequest/small-2  100  " + ns + " ns/op  12.5 MB/s  " + b + " B/op  " + allocs + " allocs/op\n"
}

func TestGate(t *testing.T) {
	t.Parallel()
	base := head + lines("1000", "6000", "50") + lines("1100", "6010", "50") + lines("3000", "6000", "51") + "PASS\n"
	for _, tc := range []struct {
		name, now, want string
		code            int
	}{
		{"same", base, "no benchmark is worse", 0},
		{"fewer", head + lines("900", "5000", "40"), "no benchmark is worse", 0},
		{"one more allocation", head + lines("1000", "6000", "51"), "WORSE: more allocations", 1},
		{"a copy of the body", head + lines("1000", "71536", "50"), "WORSE: more bytes", 1},
		{"slower", head + lines("1500", "6000", "50"), "WORSE: slower", 1},
		{"one slow run", head + lines("9000", "6000", "50") + lines("1010", "6000", "50"), "no benchmark is worse", 0},
		{"more allocations in most runs", head + lines("1000", "6000", "50") + lines("1000", "6900", "51") + lines("1000", "6900", "51"), "no benchmark is worse", 0},
		{"one fast run less", head + lines("1310", "6000", "50"), "no benchmark is worse", 0},
		{"another benchmark", head + strings.ReplaceAll(lines("1", "1", "1"), "Request", "Other"), "removed", 0},
		{"nothing", head + "PASS\n", "no benchmarks", 2},
		{"garbage", head + lines("1", "many", "1"), "not a number", 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range map[string]string{"base": base, "new": tc.now} {
				require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			var out bytes.Buffer
			code := run([]string{filepath.Join(dir, "base"), filepath.Join(dir, "new")}, &out, &out)
			assert.True(t, code == tc.code && strings.Contains(out.String(), tc.want),
				"code %d, want %d and %q in:\n%s", code, tc.code, tc.want, out.String())
		})
	}
	var out bytes.Buffer
	assert.Equal(t, 2, run([]string{"one"}, &out, &out), "one file: code")
	assert.Equal(t, 2, run([]string{"missing", "files"}, &out, &out), "missing files: code")
}
