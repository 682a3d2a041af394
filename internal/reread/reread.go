// Package reread keeps what a program makes of files, and makes it again when they change.
// Files that cannot be used, or that somebody is still writing, leave the former active.
package reread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// every is between two looks at the files.
const every = 2 * time.Second

// ErrLarge is wrapped for a file that is larger than it may be.
var ErrLarge = errors.New("too large")

// Options configure Files.
type Options[T any] struct {
	Paths []string // "" means no file: its contents are empty
	Most  int64    // bytes that one may hold
	// Make makes what is active of what the files hold, in the order of Paths. was is in
	// force until then, nil at first.
	Make func(held [][]byte, was *T) (*T, error)
	// Taken is told of what is active because files have changed, and Refused why they
	// cannot be used, once for each reason. nil: nobody is told.
	Taken   func(*T)
	Refused func(why error)
}

// Files are read together. They are safe for concurrent use; nobody but who looks at the
// files waits for them.
type Files[T any] struct {
	o      Options[T]
	now    atomic.Pointer[T]
	status atomic.Pointer[Status]

	looks sync.Mutex // one at a time; guards what follows
	taken [][]byte   // what is active
	found [][]byte   // what the look before found, if it is not that
}

// Status is how files are.
type Status struct {
	Problem string // why the files as they are now are not active; "" if they are
	Reloads int64  // times that changed files were taken
}

// Open reads the files. What is wrong with them is an error.
func Open[T any](o Options[T]) (*Files[T], error) {
	f := &Files[T]{o: o}
	held, err := f.read()
	if err != nil {
		return nil, err
	}
	made, err := o.Make(held, nil)
	if err != nil {
		return nil, err
	}
	f.taken = held
	f.now.Store(made)
	f.status.Store(&Status{})
	return f, nil
}

// Now is what is active. Nobody changes it.
func (f *Files[T]) Now() *T { return f.now.Load() }

// Status reports how the files are.
func (f *Files[T]) Status() Status { return *f.status.Load() }

// Watch looks at the files from time to time until ctx ends.
func (f *Files[T]) Watch(ctx context.Context) {
	if !slices.ContainsFunc(f.o.Paths, func(path string) bool { return path != "" }) {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.Look()
		}
	}
}

// Look reads the files once. They are compared by what they hold: neither a time stamp nor
// an event can then be missed, whatever kind of mount they are on. Changed ones count when
// two looks have found the same: half a file may look like a whole one.
func (f *Files[T]) Look() {
	f.looks.Lock()
	defer f.looks.Unlock()
	held, err := f.read()
	before := f.found
	f.found = held // nil after an error
	is := f.Status()
	switch {
	case err != nil:
		f.refuse(is, err)
	case same(held, f.taken):
		is.Problem = ""
		f.status.Store(&is)
	case before != nil && same(held, before):
		made, err := f.o.Make(held, f.Now())
		if err != nil {
			f.refuse(is, err)
			return
		}
		f.taken = held
		f.now.Store(made)
		f.status.Store(&Status{Reloads: is.Reloads + 1})
		if f.o.Taken != nil {
			f.o.Taken(made)
		}
	}
}

func (f *Files[T]) refuse(is Status, why error) {
	if why.Error() == is.Problem {
		return
	}
	is.Problem = why.Error()
	f.status.Store(&is)
	if f.o.Refused != nil {
		f.o.Refused(why)
	}
}

func (f *Files[T]) read() ([][]byte, error) {
	held := make([][]byte, len(f.o.Paths))
	for i, path := range f.o.Paths {
		if path == "" {
			continue
		}
		var err error
		if held[i], err = readFile(path, f.o.Most); err != nil {
			return nil, err
		}
	}
	return held, nil
}

func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(raw)) > most {
		err = fmt.Errorf("%s: %w: more than %d bytes", path, ErrLarge, most)
	}
	return raw, err
}

func same(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }
