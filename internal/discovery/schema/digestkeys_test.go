package schema

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The demand of keys takes at most 6 KiB and 64 keys, whatever the number of keys.
// A digest with other keys is written soon; impossible values are refused.
func TestDigestKeys(t *testing.T) {
	t.Parallel()
	for _, length := range []int{3, 64} {
		all := map[string][]int64{}
		for i := range 200 {
			all[fmt.Sprintf("%0*d", length, i)] = []int64{maxCount, maxCount, maxCount, maxCount, maxCount}
		}
		d, without := NewDigest(1, nil, time.Now()), NewDigest(1, nil, time.Now())
		d.SetKeys(all)
		raw, err := json.Marshal(d)
		assert.True(t, err == nil && len(raw) <= maxKeySize+200 && len(d.Keys) <= maxKeys && len(d.Keys) >= 20,
			"%d keys, %d bytes, %v", len(d.Keys), len(raw), err)
		if again, err := DecodeDigest(raw); err != nil || !again.Equal(&d) || again.Differs(&d) || !again.Differs(&without) || again.Equal(&without) {
			t.Errorf("%v: %+v", err, again)
		}
	}
	a, b := NewDigest(1, nil, time.Now()), NewDigest(1, nil, time.Now())
	a.SetKeys(map[string][]int64{"a": {600}})
	b.SetKeys(map[string][]int64{"a": {640}})
	assert.False(t, a.Differs(&b), "a change by less than a tenth is urgent, or is none")
	assert.False(t, a.Equal(&b), "a change by less than a tenth is urgent, or is none")
	for _, bad := range []string{`{"a":[-1]}`, `{"a":[1099511627777]}`, `{"a":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}`, `{"a":1}`} {
		_, err := DecodeDigest([]byte(`{"v":1,"load":{},"keys":` + bad + `}`))
		assert.True(t, err != nil && strings.Contains(err.Error(), "invalid load digest"), "%s: %v", bad, err)
	}
}
