package output

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Kind is leased, static or pending.
func Kind(in *instance.Instance) string {
	switch {
	case in.View == instance.Pending:
		return "pending"
	case in.Static():
		return "static"
	}
	return "leased"
}

// ShortModels names the first two models and counts the others.
func ShortModels(models []string) string {
	const most = 2
	if len(models) <= most {
		return strings.Join(models, ",")
	}
	return fmt.Sprintf("%s +%d", strings.Join(models[:most], ","), len(models)-most)
}

// ByteSize is a size for people.
func ByteSize(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), 0
	for units := "KMGT"; v >= 1<<10 && unit < len(units); unit++ {
		v /= 1 << 10
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGT"[unit-1])
}

// Weight is the weight that is active.
func Weight(w *int) string {
	if w == nil {
		return "100"
	}
	return strconv.Itoa(*w)
}

// Proxies is a number of proxies.
func Proxies(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}

// Labels are NAME=VALUE, sorted.
func Labels(m map[string]string) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return Shown(strings.Join(parts, ","))
}

// Shown is a value for people: "-" for none.
func Shown(s string) string {
	if s == "" {
		return "-"
	}
	return instance.Printable(s, 200)
}

// LeaseName is a lease as etcdctl prints it.
func LeaseName(id int64) string {
	if id == 0 {
		return "none"
	}
	return strconv.FormatInt(id, 16)
}

// maxShown bounds a value on a terminal; a usable one is at most 16 KiB.
const maxShown = 64 << 10

// EscapeValue is a value of etcd without control characters.
func EscapeValue(value []byte) string { return instance.Printable(string(value), maxShown) }
