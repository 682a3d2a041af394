package leg

import (
	"os"
	"strings"
	"testing"
)

// The document shows the table that the code runs by.
func TestFailureTableIsDocumented(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/failures.md")
	if err != nil {
		t.Fatal(err)
	}
	if table := FailureTable(); !strings.Contains(string(doc), table) {
		t.Fatalf("docs/failures.md does not hold this table:\n%s", table)
	}
}

func TestEveryClassHasARule(t *testing.T) {
	t.Parallel()
	seen := map[Class]bool{}
	for _, r := range Rules() {
		if seen[r.Class] || r.What == "" || r.Client == "" {
			t.Errorf("rule %+v is double or incomplete", r)
		}
		seen[r.Class] = true
		if r.Blame == BlameEject && !r.Free {
			t.Errorf("%s: a refused connection costs nothing and must not count", r.Class)
		}
		if !r.Retry && r.Blame == BlameStrike {
			t.Errorf("%s: nobody else can serve it, so nobody can be blamed", r.Class)
		}
	}
	for _, c := range []Class{
		NotConnected, ConnectTimeout, NoConnection, NoSocket, Lost, BrokeOff, PrefillTimeout, FirstByteTimeout, IdleTimeout, Gone, Busy,
		Unavailable503, Status5xx, Status4xx, EngineKey, ModelMissing, BadAnswer, ErrorEvent, OurEdit, HandoverExpired, PartnerFailed, ClientGone,
	} {
		if !seen[c] {
			t.Errorf("%s has no rule", c)
		}
	}
}
