package real_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/internal/connector"
)

// scheduled is how a NIXL scheduler interpreted a request.
type scheduled struct {
	Produces, Receives bool
	Registers          *struct {
		Host   string `json:"remote_host"`
		Port   int    `json:"remote_port"`
		TPSize int    `json:"remote_tp_size"`
	}
}

// parsedCase is how vLLM interpreted the legs of one case.
type parsedCase struct {
	Tokens  int
	Streams bool
	// NIXL
	Same            bool // decode received prefill's transfer params unchanged
	Prefill, Decode *scheduled
	// the P2P tier
	Keeps, Fetches, From string
	Probes               bool
}

// TestContract passes the legs of our golden files to the vLLM code that parses them, and compares the
// connectors that vLLM registers with those that we know.
func TestContract(t *testing.T) {
	r := newRig(t)
	var got struct {
		Names []string
		Legs  map[string]map[string]parsedCase
	}
	require.NoError(t, json.Unmarshal([]byte(r.python(t, "lab/contract.py", absolute("../../internal/connector/testdata"))), &got))
	t.Run("names", func(t *testing.T) {
		for _, name := range got.Names {
			if _, ok := connector.OfClass(name); !ok {
				t.Errorf("%s is not known", name)
			}
		}
		list, err := os.ReadFile(absolute("../../internal/connector/testdata/registered/vllm-0.32.0.txt"))
		require.NoError(t, err)
		if want := strings.Fields(string(list)); !slices.Equal(got.Names, want) {
			t.Errorf("vLLM registers %q, our file lists %q", got.Names, want)
		}
	})
	for dialect, cases := range got.Legs {
		t.Run(dialect, func(t *testing.T) {
			if len(cases) < 5 {
				t.Errorf("only %d cases", len(cases))
			}
			for name, is := range cases {
				rank := prefillRank(t, dialect, name)
				if is.Tokens != 1 || is.Streams {
					t.Errorf("%s: the prefill has %d tokens, streams %v", name, is.Tokens, is.Streams)
				}
				if dialect == "p2p" {
					if is.Keeps == "" || is.Keeps != is.Fetches || is.From != fmt.Sprint("10.0.0.1:", 5710+rank) || is.Probes {
						t.Errorf("%s: %+v", name, is)
					}
					continue
				}
				if is.Prefill == nil || !is.Prefill.Produces || is.Prefill.Receives {
					t.Errorf("%s: prefill %+v", name, is.Prefill)
				}
				if strings.HasSuffix(name, "no-handover") {
					continue
				}
				d := is.Decode
				if !is.Same || d == nil || d.Produces || !d.Receives {
					t.Errorf("%s: the same %v, decode %+v", name, is.Same, d)
				} else if push := dialect == "nixl_push"; push != (d.Registers != nil) || push && (d.Registers.Host != "10.0.0.1" || d.Registers.Port != 5600+rank || d.Registers.TPSize != 2) {
					t.Errorf("%s: decode registers %+v", name, d.Registers)
				}
			}
		})
	}
}

var reRank = regexp.MustCompile(`(?m)^prefill: .*\n  X-data-parallel-rank: (\d+)$`)

// prefillRank returns the rank that the prefill leg of a case is for. Rank n listens on the port of rank 0
// plus n.
func prefillRank(t *testing.T, dialect, name string) int {
	t.Helper()
	legs, err := os.ReadFile(absolute(filepath.Join("../../internal/connector/testdata", dialect, name, "legs.txt")))
	require.NoError(t, err)
	m := reRank.FindSubmatch(legs)
	if m == nil {
		return 0
	}
	rank, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return rank
}
