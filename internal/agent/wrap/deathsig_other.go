//go:build !linux

package wrap

import "os/exec"

// startDeathsig starts the child without a death signal, which only Linux has.
func startDeathsig(_ *exec.Cmd, start func() error) (free func(), err error) {
	return func() {}, start()
}
