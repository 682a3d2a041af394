package session_test

import (
	"context"
	"io"
	"testing"

	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

// A command that reads from a terminal or a pipe ends when a signal cancels its context.
func TestReadFileInterrupted(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if text, err := session.ReadFile(ctx, "-", r); err == nil {
		t.Errorf("it has read %q", text)
	}
}
