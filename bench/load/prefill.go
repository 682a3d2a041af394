package load

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/pdmesh/pdmesh/bench/answer"
)

// keepingCheck keeps a prefill's answer while it checks it, for the hand-over
// in it.
type keepingCheck struct {
	*answer.WholeCheck
	lenient bool // the strict simulator's answers are read, not compared
	body    []byte
}

func (k *keepingCheck) Begin(tag uint64) {
	k.body = k.body[:0]
	k.WholeCheck.Begin(tag)
}

func (k *keepingCheck) Write(p []byte) error {
	k.body = append(k.body, p...)
	if k.lenient {
		return nil
	}
	return k.WholeCheck.Write(p)
}

func (k *keepingCheck) End() error {
	if k.lenient {
		return nil
	}
	return k.WholeCheck.End()
}

// handover is the KV cache's description, nothing from engines that share one.
func (k *keepingCheck) handover() ([]byte, error) {
	if !k.lenient {
		// Compared to the last byte already: it stands at the end.
		i := bytes.Index(k.body, []byte(answer.Handover)) + len(answer.Handover)
		return k.body[i : len(k.body)-1], nil
	}
	var v struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(k.body, &v); err != nil {
		return nil, fmt.Errorf("%w: the prefill's answer %.160q: %w", answer.ErrWrong, k.body, err)
	}
	if string(v.KV) == "null" {
		return nil, nil
	}
	return v.KV, nil
}
