// Package clients_test runs common clients against a whole fleet. The official OpenAI clients for Go and
// JavaScript run as they are. Recordings of requests represent the benchmark and evaluation tools, and code
// that parses responses as these tools do checks their requirements. The proxy is the built program with its
// embedded etcd, the engines are strict NIXL ones on TCP.
package clients_test

import (
	"os"
	"testing"

	"github.com/pdmesh/pdmesh/test/harness"
)

// binDir is the directory of the programs; TestMain builds them once for all tests.
var binDir string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &binDir)) }
