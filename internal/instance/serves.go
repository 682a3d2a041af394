package instance

import "strings"

// Serves reports whether an engine with these facts serves the wanted model: any
// id or root of /v1/models equals it. Unless strict, the last path component is
// enough, so that /models/Qwen2.5-7B and Qwen/Qwen2.5-7B name the same model. An empty
// want matches every engine.
func (f *Facts) Serves(want string, strict bool) bool {
	if want == "" {
		return true
	}
	last := lastComponent(want)
	for _, names := range [][]string{f.Models, f.Roots} {
		for _, have := range names {
			if have != "" && (have == want || !strict && last != "" && lastComponent(have) == last) {
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
