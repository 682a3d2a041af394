package settings

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// JSONList is a list of names in the form of vLLM's options.
type JSONList []string

// parseJSONList parses ["a","b"] or a,b. An empty text is an empty list.
func parseJSONList(s string) (JSONList, error) {
	list := JSONList{}
	switch s = strings.TrimSpace(s); {
	case s == "":
		return nil, nil
	case s[0] == '[':
		if err := json.Unmarshal([]byte(s), &list); err != nil {
			return nil, fmt.Errorf("%w %q: must be a list such as [\"*\"]: %s", ErrValue, s, instance.JSONError(err))
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
