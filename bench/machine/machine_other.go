//go:build !linux

package machine

// Tree returns the process only.
func Tree(pid int) []int { return []int{pid} }

// Memory returns ErrUnknown.
func Memory([]int) (int64, error) { return 0, ErrUnknown }

// CPU returns ErrUnknown.
func CPU([]int) (float64, error) { return 0, ErrUnknown }

// Times returns ErrUnknown.
func Times() (busy, all float64, err error) { return 0, 0, ErrUnknown }

// RaiseFiles returns a limit that every system has.
func RaiseFiles() int { return 1024 }

func (f *Facts) fill() {}
