//go:build !linux

package machine

// Tree is the process alone.
func Tree(pid int) []int { return []int{pid} }

// Read does not know.
func Read([]int) (Usage, error) { return Usage{}, ErrUnknown }

// Memory does not know.
func Memory([]int) (int64, error) { return 0, ErrUnknown }

// CPU does not know.
func CPU([]int) (float64, error) { return 0, ErrUnknown }

// Times does not know.
func Times() (busy, all float64, err error) { return 0, 0, ErrUnknown }

// ResetPeak cannot.
func ResetPeak([]int) error { return ErrUnknown }

// RaiseFiles cannot.
func RaiseFiles() int { return 1024 }

func (f *Facts) fill() {}
