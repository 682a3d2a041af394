package kvevents

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

var errShort = errors.New("truncated message")

// eachItem calls f with each item of an array, and returns the first error.
func eachItem(p []byte, f func(i int, item []byte) error) error {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return fmt.Errorf("array: %w", err)
	}
	for i := range n {
		rest, err := msgp.Skip(p)
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

// eachMember calls f with each member of a map whose key is text, and returns the first error.
func eachMember(p []byte, f func(key, value []byte) error) error {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	for range n {
		value, err := msgp.Skip(p)
		if err != nil {
			return err
		}
		rest, err := msgp.Skip(value)
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
