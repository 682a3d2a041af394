package kvevents

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// A dropped message wakes a source that waits for the next one, and the source catches up.
func TestQueue_DropsWhileNextWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		memory := NewMemory(1)
		memory.used.Store(1)
		q := newQueue(memory)
		got := make(chan message)
		go func() {
			m, _ := q.next()
			got <- m
		}()
		synctest.Wait()
		q.put(message{payload: make([]byte, 100)})
		m := <-got
		assert.True(t, m.catchUp, "%+v", m)
	})
}
