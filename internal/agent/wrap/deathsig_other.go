//go:build !linux

package wrap

import "os/exec"

// startDeathsig starts the child as any other: only Linux can tie it to us.
func startDeathsig(_ *exec.Cmd, start func() error) (free func(), err error) {
	return func() {}, start()
}
