package wrap

// Done returns a channel that is closed when the child's process group has ended as well, or has
// survived SIGKILL for some time.
func (p *Process) Done() <-chan struct{} { return p.done }
