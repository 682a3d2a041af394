//go:build !linux

package embedetcd

import "errors"

func diskSpace(string) (free, all uint64, err error) { return 0, 0, errors.ErrUnsupported }
