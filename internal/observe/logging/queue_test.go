package logging_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/observe/logging"
)

// gate lets writes through while it is open.
type gate struct {
	mu   sync.Mutex
	open chan struct{}
	got  strings.Builder
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.Write(p)
}

// No goroutine waits for a blocked output; the queued lines are written later, in order, with the
// number of dropped lines.
func TestQueueWithAStalledOutput(t *testing.T) {
	t.Parallel()
	g := &gate{open: make(chan struct{})}
	var q *logging.Queue
	lost := 0
	q = logging.NewQueue(g, func(n int) {
		lost += n
		_, _ = io.WriteString(q, "lines were lost\n")
	})
	line := strings.Repeat("x", 1000)
	const lines = 10000 // 10 MB, of which 4 MB fit
	for i := range lines {
		if n, err := fmt.Fprintf(q, "%06d %s\n", i, line); n != 1008 || err != nil {
			t.Fatal(n, err)
		}
	}
	require.False(t, q.Flush(time.Millisecond), "all is written to an output that takes nothing")
	close(g.open)
	require.True(t, q.Flush(time.Minute), "it was not written")
	g.mu.Lock()
	defer g.mu.Unlock()
	got := strings.Split(strings.TrimSuffix(g.got.String(), "\n"), "\n")
	if last := got[len(got)-1]; last != "lines were lost" || lost == 0 || lost+len(got)-1 != lines {
		t.Errorf("%d lines came, %d were lost, the last is %.40q", len(got), lost, last)
	}
	for i, l := range got[:len(got)-1] {
		require.Equal(t, fmt.Sprintf("%06d %s", i, line), l, "line %d", i)
	}
}

func TestQueueInOrder(t *testing.T) {
	t.Parallel()
	g := &gate{open: make(chan struct{})}
	close(g.open)
	q := logging.NewQueue(g, nil)
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "%d\n", i)
		fmt.Fprintf(q, "%d\n", i)
	}
	if !q.Flush(time.Minute) || g.got.String() != want.String() {
		t.Errorf("%d bytes of %d", g.got.Len(), want.Len())
	}
	assert.True(t, q.Flush(0), "an empty queue is not empty")
}
