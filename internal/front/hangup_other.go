//go:build !linux

package front

import "errors"

// watcher exists on Linux only.
type watcher struct{}

func newWatcher() (*watcher, error) { return nil, errors.New("needs Linux") }

func (*watcher) add(*conn) error { return nil }
func (*watcher) forget(*conn)    {}
func (*watcher) remove(*conn)    {}
func (*watcher) run()            {}
func (*watcher) close() error    { return nil }
