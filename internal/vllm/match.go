package vllm

import (
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// MatchModel tells whether an engine serves the wanted model: any id or root of
// /v1/models equals it. Unless strict, the last path component is enough, so
// that /models/Qwen2.5-7B and Qwen/Qwen2.5-7B name the same. An empty want
// matches everything.
func MatchModel(facts instance.Facts, want string, strict bool) bool {
	if want == "" {
		return true
	}
	for _, names := range [][]string{facts.Models, facts.Roots} {
		for _, have := range names {
			if have == "" {
				continue
			}
			if have == want || (!strict && lastComponent(have) != "" && lastComponent(have) == lastComponent(want)) {
				return true
			}
		}
	}
	return false
}

func lastComponent(s string) string {
	s = strings.TrimRight(s, "/")
	return s[strings.LastIndexByte(s, '/')+1:]
}
