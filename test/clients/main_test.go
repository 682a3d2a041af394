// Package clients_test lets the clients that people have talk to a whole fleet:
// the official OpenAI clients for Go and JavaScript as they are, and the
// benchmark and evaluation tools by recordings of what they send, with what
// they require of the answer read as they read it. The proxy is the built
// program with its etcd, the engines are strict NIXL ones on TCP.
package clients_test

import (
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir holds the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }
