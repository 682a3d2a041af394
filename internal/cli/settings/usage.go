package settings

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// The annotations by which Usage recognizes the flags of Register.
const (
	annotationGroup = "pdmesh.group"
	annotationRare  = "pdmesh.rare"
)

// usageColumns is the width of a line of Usage.
const usageColumns = 100

// IsRare reports whether a flag is that of a Rare setting.
func IsRare(f *pflag.Flag) bool {
	_, rare := f.Annotations[annotationRare]
	return rare
}

// Usage returns the flags of fs for --help, each under the heading of its setting's group.
// Flags without a setting are last, under the heading others. Rare settings are listed only
// if all is set.
func Usage(fs *pflag.FlagSet, others string, all bool) string {
	var headings []string
	groups := make(map[string]*pflag.FlagSet)
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || IsRare(f) && !all {
			return
		}
		heading := others
		if group := f.Annotations[annotationGroup]; group != nil {
			heading = group[0]
		}
		if groups[heading] == nil {
			groups[heading] = pflag.NewFlagSet(heading, pflag.ContinueOnError)
			groups[heading].SortFlags = fs.SortFlags
			headings = append(headings, heading)
		}
		groups[heading].AddFlag(f)
	})
	if i := slices.Index(headings, others); i >= 0 { // last
		headings = append(slices.Delete(headings, i, i+1), others)
	}
	var out strings.Builder
	for _, heading := range headings {
		out.WriteString("\n" + heading + ":\n" + groups[heading].FlagUsagesWrapped(usageColumns))
	}
	return out.String()
}
