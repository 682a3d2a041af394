package output

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// ShortModels returns the first two models and the number of the others.
func ShortModels(models []string) string {
	const most = 2
	if len(models) <= most {
		return strings.Join(models, ",")
	}
	return fmt.Sprintf("%s +%d", strings.Join(models[:most], ","), len(models)-most)
}

// ByteSize formats a size with a unit.
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

// Weight returns the active weight.
func Weight(w *int) string {
	if w == nil {
		return "100"
	}
	return strconv.Itoa(*w)
}

// Short formats a duration as kubectl does, at least 0s.
func Short(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// EndsIn describes when something ends by itself.
func EndsIn(at time.Time) string { return "ends in " + Short(time.Until(at)) }

// Proxies formats a number of proxies.
func Proxies(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}

// Labels formats labels as NAME=VALUE, sorted.
func Labels(m map[string]string) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return Shown(strings.Join(parts, ","))
}

// Shown returns a value for a table: "-" if it is empty.
func Shown(s string) string {
	if s == "" {
		return "-"
	}
	return instance.Printable(s, 200)
}

// LeaseName formats a lease as etcdctl prints it.
func LeaseName(id int64) string {
	if id == 0 {
		return "none"
	}
	return strconv.FormatInt(id, 16)
}

// maxShown bounds a printed value; a usable one has at most 16 KiB.
const maxShown = 64 << 10

// EscapeValue returns a value of etcd with control characters escaped.
func EscapeValue(value []byte) string { return instance.Printable(string(value), maxShown) }
