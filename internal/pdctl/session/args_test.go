package session_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// A command that reads from a terminal or a pipe ends when a signal cancels its context.
func TestReadFileInterrupted(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	text, err := session.ReadFile(ctx, "-", r)
	assert.Error(t, err, "it has read %q", string(text))
}
