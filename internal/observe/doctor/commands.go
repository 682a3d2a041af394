package doctor

import (
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/instance"
)

// Reach has the flags with which commands reach the same etcd.
type Reach struct{ Pdctl, Etcdctl []string }

// pdctl returns a pdctl command line.
func (r *Reach) pdctl(words ...string) string {
	return shell(slices.Concat([]string{"pdctl"}, words, r.Pdctl)...)
}

// etcdctl returns an etcdctl command line.
func (r *Reach) etcdctl(words ...string) string {
	return shell(slices.Concat([]string{"etcdctl"}, r.Etcdctl, words)...)
}

// shell joins words to a command line. Words with special characters of the shell are quoted,
// because values from etcd are untrusted.
func shell(words ...string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = word(w)
	}
	return strings.Join(out, " ")
}

func word(w string) string {
	plain := w != "" && strings.IndexFunc(w, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=,@%+", r))
	}) < 0
	if plain {
		return w
	}
	return "'" + strings.ReplaceAll(instance.Printable(w, 400), "'", `'\''`) + "'"
}
