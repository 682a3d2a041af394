//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package upstream

type sendState struct{}

func (c *conn) sendAndRead() (more bool, sendErr, readErr error) { return true, nil, nil }

func (c *conn) sendStep(uintptr) bool { return true }
