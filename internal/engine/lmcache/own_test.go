package lmcache_test

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/engine/lmcache"
)

// LMCache's code decodes our requests and encodes a notification.
// This test runs on demand, with a Python that has msgspec:
//
//	pip download --no-deps lmcache && unzip lmcache-*.whl -d DIR
//	PD_TEST_LMCACHE=DIR PD_TEST_PYTHON=python3 go test ./internal/engine/lmcache -run Own
func TestLMCachesOwnCode(t *testing.T) {
	t.Parallel()
	dir, python := os.Getenv("PD_TEST_LMCACHE"), os.Getenv("PD_TEST_PYTHON")
	if dir == "" {
		t.Skip("PD_TEST_LMCACHE names no unpacked lmcache")
	}
	if python == "" {
		python = "python3"
	}
	leg := filepath.Join("..", "..", "connector", "testdata", "lmcache", "chat-tools")
	cmd := exec.CommandContext(t.Context(), python, filepath.Join("testdata", "own.py"), dir, filepath.Join(leg, "prefill.json"), filepath.Join(leg, "decode.json"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	frame, err := hex.DecodeString(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	if id, err := lmcache.ParseNotification(frame); id != "7" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
}
