package policy

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pdmesh/pdmesh/sim/testkit"
)

func TestFind(t *testing.T) {
	t.Parallel()
	names := Names()
	assert.True(t, names[0] == Default && slices.Contains(names, Session), "names %v", names)
	for _, name := range names {
		k, err := Find(name)
		if err != nil || k.Name != name {
			t.Errorf("%s: %+v, %v", name, k, err)
			continue
		}
		if i, _ := k.New(seeded()).Choose(All(fleet(1)), Request{Session: "s", Prompt: make([]byte, 1000)}); i != 0 {
			t.Errorf("%s chose %d of one", name, i)
		}
	}
	_, err := Find("best")
	require.True(t, errors.Is(err, ErrUnknown), "%v", err)
	testkit.Contains(t, err.Error(), names...)
}

// The last policy of a chain always chooses.
func TestChain(t *testing.T) {
	t.Parallel()
	for _, name := range append(Names(), "") {
		kind, _ := Find(name)
		for _, bind := range []bool{false, true} {
			var asked []string
			for _, k := range Chain(kind, bind) {
				assert.False(t, slices.Contains(asked, k.Name), "%q: %s is asked twice", name, k.Name)
				asked = append(asked, k.Name)
			}
			assert.Equal(t, Default, asked[len(asked)-1], "%q: the last is %v", name, asked)
			assert.False(t, bind && asked[0] != Session, "%q: sessions are not asked about first: %v", name, asked)
			if own := slices.Index(asked, name); name != "" && own > 0 && asked[own-1] != Session {
				t.Errorf("%q: %v", name, asked)
			}
		}
	}
}
