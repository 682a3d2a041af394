package kvevents

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

var (
	errDeep  = errors.New("nested too deeply")
	errShort = errors.New("cut short")
)

// eachItem calls f with each item of an array, and ends with its first error.
func eachItem(p []byte, f func(i int, item []byte) error) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return fmt.Errorf("array: %w", err)
	}
	for i := range n {
		rest, err := skip(p, maxDepth)
		if err != nil {
			return err
		}
		if err := f(int(i), p[:len(p)-len(rest)]); err != nil {
			return err
		}
		p = rest
	}
	return nil
}

// eachMember calls f with each member of a map whose key is text, and ends with its
// first error.
func eachMember(p []byte, f func(key, value []byte) error) error {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	for range n {
		value, err := skip(p, maxDepth)
		if err != nil {
			return err
		}
		rest, err := skip(value, maxDepth)
		if err != nil {
			return err
		}
		if msgp.NextType(p) == msgp.StrType {
			key, _, err := msgp.ReadStringZC(p)
			if err != nil {
				return fmt.Errorf("key: %w", err)
			}
			if err := f(key, value[:len(value)-len(rest)]); err != nil {
				return err
			}
		}
		p = rest
	}
	return nil
}

// skip returns what comes after one value. The library's own takes any depth.
func skip(p []byte, depth int) ([]byte, error) {
	if len(p) == 0 {
		return nil, errShort
	}
	if depth == 0 {
		return nil, errDeep
	}
	var n uint32
	var err error
	switch msgp.NextType(p) {
	case msgp.ArrayType:
		n, p, err = msgp.ReadArrayHeaderBytes(p)
	case msgp.MapType:
		if n, p, err = msgp.ReadMapHeaderBytes(p); n > 1<<31-1 {
			return nil, errShort
		}
		n *= 2
	default:
		p, err = msgp.Skip(p)
	}
	if err != nil {
		return nil, fmt.Errorf("skip: %w", err)
	}
	for range n {
		if p, err = skip(p, depth-1); err != nil {
			return nil, err
		}
	}
	return p, nil
}
