package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

const sample = `{"row":6,"test":"TestFault06_X","what":"gap","value":2.1,"bar":4,"unit":"s"}
{"row":6,"test":"TestFault06_X","passed":true}
{"row":7,"test":"TestFault07_X/paused","what":"gap","value":13.1,"bar":5,"unit":"s"}
{"row":7,"test":"TestFault07_X","passed":true}
{"row":8,"test":"TestFault08_X","passed":false}
{"row":31,"test":"TestFault31_X","what":"picks","value":0,"bar":0,"unit":"count"}
{"row":31,"test":"TestFault31_X","passed":true}
`

func TestRender(t *testing.T) {
	t.Parallel()
	entries, err := read(strings.NewReader(sample))
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, render(&out, entries, "abc", "a machine", time.Unix(0, 0)))
	require.True(t, testkit.Contains(t, out.String(),
		"Commit: `abc`", "Machine: a machine", "1 January 1970",
		"gap: **2.10 s** (limit 4.00 s) | met | TestFault06_X |",
		"**not met** | TestFault07_X |", "- row 7 (member paused, blackholed, half open, one way): gap: 13.10 s instead of 5.00 s",
		"**FAILED** | TestFault08_X |", "- row 8 (quorum lost): its test fails",
		"picks: **0** (limit 0) | met |", "- row 9 (etcd paused past the TTL, resumed)",
	))
	if _, err := read(strings.NewReader("{")); err == nil {
		t.Error("an invalid line is accepted")
	}
}

func TestMatrix_Complete(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for _, l := range matrix() {
		assert.True(t, !seen[l.row] && l.fault != "" && l.expected != "" && l.bar != "", "row %+v", l)
		seen[l.row] = true
	}
	for n := 1; n <= 32; n++ {
		assert.True(t, seen[n], "row %d is missing", n)
	}
}
