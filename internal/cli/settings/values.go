package settings

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Assign reads raw, a string or the []string of a YAML list, into the field
// that ptr points at.
func Assign(ptr, raw any) error {
	if list, ok := raw.([]string); ok {
		return assignItems(ptr, list)
	}
	text, ok := raw.(string)
	if !ok {
		return fmt.Errorf("%w: not a plain value", ErrValue)
	}
	switch p := ptr.(type) {
	case *string:
		*p = text
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%w %q: must be a whole number", ErrValue, text)
		}
		*p = n
	case *int64:
		return into(p)(parseSize(text))
	case *bool:
		return into(p)(Switch(text))
	case *JSONList:
		return into(p)(parseJSONList(text))
	case *time.Duration:
		return into(p)(Duration(text))
	default:
		return assignItems(ptr, strings.Split(text, ","))
	}
	return nil
}

// into returns a function that sets *p unless there is an error.
func into[T any](p *T) func(T, error) error {
	return func(value T, err error) error {
		if err == nil {
			*p = value
		}
		return err
	}
}

func assignItems(ptr any, items []string) error {
	items = slices.Clone(items)
	for i, item := range items {
		if items[i] = strings.TrimSpace(item); items[i] == "" {
			return fmt.Errorf("%w: an item of the list is empty; separate items by commas", ErrValue)
		}
	}
	switch p := ptr.(type) {
	case *[]string:
		*p = items
	case *JSONList:
		*p = items
	case *[]netip.Prefix:
		return into(p)(parsePrefixes(items))
	default:
		return fmt.Errorf("%w: a list, where one value is wanted", ErrValue)
	}
	return nil
}

// parseSize takes a number of bytes with an optional unit; KB and KiB both
// mean 1024 bytes, so that 64MB admits a body of 64 MiB.
func parseSize(s string) (int64, error) {
	bad := fmt.Errorf("%w %q: must be a size such as 67108864, 512KiB or 64MiB", ErrValue, s)
	digits := strings.TrimRight(strings.TrimSpace(s), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	shift, known := map[string]int{
		"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20, "g": 30, "gb": 30, "gib": 30, "t": 40, "tb": 40, "tib": 40,
	}[strings.ToLower(strings.TrimSpace(s)[len(digits):])]
	if err != nil || !known || n > math.MaxInt64>>shift || n < 0 {
		return 0, bad
	}
	return n << shift, nil
}

func parsePrefixes(items []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, item := range items {
		if strings.EqualFold(item, "any") {
			out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
			continue
		}
		if ip, err := netip.ParseAddr(item); err == nil && ip.Zone() == "" {
			ip = ip.Unmap()
			out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%w %q: must be a network such as 10.0.0.0/8, one address, or any", ErrValue, item)
		}
		if prefix != prefix.Masked() {
			return nil, fmt.Errorf("%w %q: has bits set after the mask; write %s", ErrValue, item, prefix.Masked())
		}
		out = append(out, prefix)
	}
	return out, nil
}

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
