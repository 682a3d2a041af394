package doctor

import (
	"slices"
	"strings"

	"github.com/pdmesh/pdmesh/internal/cli"
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

// shell joins words to a command line. It makes words that need quotes printable first, because values
// from etcd are untrusted.
func shell(words ...string) string {
	out := make([]string, len(words))
	for i, w := range words {
		if out[i] = cli.ShellWord(w); out[i] != w {
			out[i] = cli.ShellWord(instance.Printable(w, 400))
		}
	}
	return strings.Join(out, " ")
}
