package wrap

// Done returns a channel that is closed when the child's process
// group has ended, too, or has survived SIGKILL for some time.
func (p *Process) Done() <-chan struct{} { return p.done }
