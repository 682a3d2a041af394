// Package background runs functions in goroutines that the caller stops and waits for.
package background

import (
	"context"
	"sync"
)

// Start runs functions with a context that has the values of ctx but outlives it. stop ends that
// context and blocks until all functions have returned.
func Start(ctx context.Context, run ...func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	for _, f := range run {
		work.Go(func() { f(ctx) })
	}
	return func() { cancel(); work.Wait() }
}
