// Package reload loads files and loads them again when they change. While changed files are
// invalid or still being written, their previous contents stay active.
package reload

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// interval is the time between two checks of the files.
const interval = 2 * time.Second

// Options configure Files.
type Options[T any] struct {
	Paths    []string // "" reads as an empty file
	MaxBytes int64    // limit for each file
	// Parse returns the value for the contents of the files, in the order of Paths. old is the
	// active value, nil at first.
	Parse func(contents [][]byte, old *T) (*T, error)
	// Loaded, unless it is nil, is called with the value of changed files.
	Loaded func(*T)
	// Rejected, unless it is nil, is called with the reason why changed files cannot be used, once
	// for each reason.
	Rejected func(why error)
}

// Files are loaded together. They are safe for concurrent use; only Check waits for the file
// system.
type Files[T any] struct {
	o       Options[T]
	current atomic.Pointer[T]
	status  atomic.Pointer[Status]

	mu     sync.Mutex // serializes checks; guards the fields below
	active [][]byte   // contents for current
	last   [][]byte   // contents at the previous check; nil after an error
}

// Status is the state of Files.
type Status struct {
	Problem string // why the present contents are not active; "" if they are
	Reloads int64  // number of times that changed files were loaded
}

// Open loads the files.
func Open[T any](o Options[T]) (*Files[T], error) {
	f := &Files[T]{o: o}
	contents, err := f.read()
	if err != nil {
		return nil, err
	}
	value, err := o.Parse(contents, nil)
	if err != nil {
		return nil, err
	}
	f.active = contents
	f.current.Store(value)
	f.status.Store(&Status{})
	return f, nil
}

// Current returns the active value, which must not be changed.
func (f *Files[T]) Current() *T { return f.current.Load() }

// Status returns the state of the files.
func (f *Files[T]) Status() Status { return *f.status.Load() }

// Watch checks the files regularly until ctx ends.
func (f *Files[T]) Watch(ctx context.Context) {
	if !slices.ContainsFunc(f.o.Paths, func(path string) bool { return path != "" }) {
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.Check()
		}
	}
}

// Check reads the files once. Files are compared by contents, so that no change is missed because
// of a time stamp, or on a mount without events. Changed files are loaded when two consecutive
// checks find the same contents, because half a file may look like a whole one.
func (f *Files[T]) Check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	contents, err := f.read()
	before := f.last
	f.last = contents
	status := f.Status()
	switch {
	case err != nil:
		f.reject(status, err)
	case equal(contents, f.active):
		status.Problem = ""
		f.status.Store(&status)
	case before != nil && equal(contents, before):
		value, err := f.o.Parse(contents, f.Current())
		if err != nil {
			f.reject(status, err)
			return
		}
		f.active = contents
		f.status.Store(&Status{Reloads: status.Reloads + 1}) // first: a reader of the new value must find it counted
		f.current.Store(value)
		if f.o.Loaded != nil {
			f.o.Loaded(value)
		}
	}
}

func (f *Files[T]) reject(status Status, why error) {
	if why.Error() == status.Problem {
		return
	}
	status.Problem = why.Error()
	f.status.Store(&status)
	if f.o.Rejected != nil {
		f.o.Rejected(why)
	}
}

func (f *Files[T]) read() ([][]byte, error) {
	contents := make([][]byte, len(f.o.Paths))
	for i, path := range f.o.Paths {
		if path == "" {
			continue
		}
		var err error
		if contents[i], err = readFile(path, f.o.MaxBytes); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

func readFile(path string, maxBytes int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && int64(len(raw)) > maxBytes {
		err = fmt.Errorf("%s: too large: more than %d bytes", path, maxBytes)
	}
	return bytes.TrimPrefix(raw, []byte("\ufeff")), err // editors on Windows write this mark
}

func equal(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }
