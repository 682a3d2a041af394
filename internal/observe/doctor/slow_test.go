package doctor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pdmesh/pdmesh/internal/instance"
)

func TestSlow(t *testing.T) {
	t.Parallel()
	type pace = instance.ListedPace
	usual := pace{Samples: 20, Seconds: .2, Work: 40} // 10 ms with 2 streams
	for name, tc := range map[string]struct {
		role  instance.Role
		paces []pace // the first one is that of the instance
		want  string // "": no finding
	}{
		"ten times":         {instance.Decode, []pace{{Samples: 20, Seconds: 2, Work: 20}, usual, usual, {Samples: 20, Seconds: 9, Work: 20}}, "10.0 times slower than its peers: 100 ms for a token, theirs is 10 ms"},
		"twice":             {instance.Decode, []pace{{Samples: 20, Seconds: .4, Work: 20}, usual, usual}, ""},
		"more streams":      {instance.Decode, []pace{{Samples: 20, Seconds: .8, Work: 160}, usual, usual}, ""},
		"few requests":      {instance.Decode, []pace{{Samples: 9, Seconds: 2, Work: 9}, usual, usual}, ""},
		"one peer":          {instance.Decode, []pace{{Samples: 20, Seconds: 2, Work: 20}, usual, {Samples: 9}}, ""},
		"peers in dispute":  {instance.Decode, []pace{{Samples: 20, Seconds: 2, Work: 20}, usual, {Samples: 20, Seconds: 1, Work: 20}}, ""},
		"prefill":           {instance.Prefill, []pace{{Samples: 20, Seconds: 80, Work: 20000}, {Samples: 20, Seconds: 20, Work: 20000}, {Samples: 20, Seconds: 20, Work: 20000}}, "4.0 times slower than its peers: 4 ms for a token of the prompt, theirs is 1 ms"},
		"longer prompts":    {instance.Prefill, []pace{{Samples: 20, Seconds: 80, Work: 80000}, {Samples: 20, Seconds: 20, Work: 20000}, {Samples: 20, Seconds: 20, Work: 20000}}, ""},
		"prompts in caches": {instance.Prefill, []pace{{Samples: 20, Seconds: 2, Work: 200}, {Samples: 20, Seconds: 20, Work: 20000}, {Samples: 20, Seconds: 20, Work: 20000}}, ""},
	} {
		m := Members{Paces: map[instance.Key]pace{}}
		var all []*instance.Instance
		for i, p := range tc.paces {
			in := &instance.Instance{Key: instance.Key{Role: tc.role, Address: string(rune('a'+i)) + ":1"}, Verified: true, Record: instance.Record{Models: []string{"m"}, State: instance.Ready}}
			m.Paces[in.Key], all = p, append(all, in)
		}
		other := &instance.Instance{Key: instance.Key{Role: tc.role, Address: "z:1"}, Verified: true, Record: instance.Record{Models: []string{"other"}, State: instance.Ready}}
		m.Paces[other.Key] = usual
		m.Snapshot = instance.NewSnapshot(1, append(all, other))
		r := report{check: "slow"}
		m.slow(&r)
		got := ""
		for _, f := range r.findings {
			if f.Subject == string(tc.role)+"/a:1" && f.Severity == Warning {
				got += f.What
			}
		}
		assert.True(t, (tc.want != "" || got == "") && strings.Contains(got, tc.want),
			"%s: %q, want %q", name, got, tc.want)
	}
}
