package settings

import (
	"encoding/json"
	"fmt"
	"strings"
)

// JSONList is a list of names that is written as vLLM's options have it.
type JSONList []string

// parseJSONList takes ["a","b"], and a,b as other lists are written. An empty text is an
// empty list.
func parseJSONList(s string) (JSONList, error) {
	list := JSONList{}
	switch s = strings.TrimSpace(s); {
	case s == "":
		return nil, nil
	case s[0] == '[':
		if err := json.Unmarshal([]byte(s), &list); err != nil {
			return nil, fmt.Errorf("%w %q: give a list such as [\"*\"]: %w", ErrValue, s, err)
		}
	default:
		list = strings.Split(s, ",")
	}
	for i := range list {
		if list[i] = strings.TrimSpace(list[i]); list[i] == "" {
			return nil, fmt.Errorf("%w %q: an item of the list is empty", ErrValue, s)
		}
	}
	return list, nil
}
