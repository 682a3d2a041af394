package leg

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// docs/failures.md has the table that the code uses.
func TestFailureTable_Documented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/failures.md")
	require.NoError(t, err)
	table := failureTable()
	require.Contains(t, string(doc), table, "docs/failures.md does not hold this table:\n%s", table)
}

func TestRules_CoverEveryClass(t *testing.T) {
	t.Parallel()
	seen := map[Class]bool{}
	for _, r := range Rules() {
		assert.True(t, !seen[r.Class] && r.What != "" && r.Client != "", "rule %+v is double or incomplete", r)
		seen[r.Class] = true
		assert.False(t, r.Blame == BlameEject && !r.Free,
			"%s: a refused connection costs nothing and must not count", r.Class)
		assert.False(t, !r.Retry && r.Blame == BlameStrike,
			"%s: no other instance can serve it, so no strike can be added", r.Class)
	}
	for _, c := range []Class{
		NotConnected, ConnectTimeout, NoConnection, NoSocket, Lost, BrokeOff, PrefillTimeout, FirstByteTimeout, IdleTimeout, Removed, Busy,
		Unavailable503, Status5xx, Status4xx, EngineKey, ModelMissing, BadAnswer, ErrorEvent, OurEdit, TransferExpired, PartnerFailed, NotNotified, Overtaken, ClientGone,
	} {
		assert.True(t, seen[c], "%s has no rule", c)
	}
}

// failureTable renders the rules as the Markdown table of docs/failures.md.
func failureTable() string {
	var b strings.Builder
	b.WriteString("| class | what happened | another instance | counts | KV of the prefill | blamed | the client gets |\n")
	b.WriteString("|---|---|---|---|---|---|---|\n")
	yes := func(v bool, a, o string) string {
		if v {
			return a
		}
		return o
	}
	for _, r := range Rules() {
		kv := "–"
		if r.Retry {
			kv = yes(r.SameKV, "same", "new")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s |\n", r.Class, r.What,
			yes(r.Retry, "yes", "no"), yes(r.Free, "no", "yes"), kv, r.Blame, r.Client)
	}
	return b.String()
}
