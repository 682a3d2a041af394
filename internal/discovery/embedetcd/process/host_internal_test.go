package process

import "testing"

// The Go runtime's errors about missing threads or memory are not treated as damaged files.
func TestExternal_Runtime(t *testing.T) {
	t.Parallel()
	for stderr, want := range map[string]bool{
		"runtime: failed to create new OS thread (have 5 already; errno=11)\nfatal error: newosproc\n":                       true,
		"runtime: out of memory: cannot allocate 4194304-byte block (66682880 in use)\nfatal error: out of memory\n":         true,
		"unexpected fault address 0x7f2f5c003000\nfatal error: fault\n[signal SIGBUS: bus error code=0x2 addr=0x1 pc=0x2]\n": false,
	} {
		c := child{last: prefixBuffer{b: []byte(stderr)}}
		if got := external(c.reason()); got != want {
			t.Errorf("%q: %t", c.reason(), got)
		}
	}
}
