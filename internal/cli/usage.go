package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
)

// helpAll is the flag that lists rare settings, too.
const helpAll = "help-all"

// usage writes the part of --help after the description of a command. It has cobra's form,
// except that flags are grouped, and rare ones are left to --help-all.
func usage(cmd *cobra.Command) error {
	var out strings.Builder
	out.WriteString("Usage:\n")
	if cmd.Runnable() {
		out.WriteString("  " + cmd.UseLine() + "\n")
	}
	if cmd.HasAvailableSubCommands() {
		out.WriteString("  " + cmd.CommandPath() + " [command]\n")
	}
	if cmd.HasExample() {
		out.WriteString("\nExamples:\n" + cmd.Example + "\n")
	}
	if cmd.HasAvailableSubCommands() {
		out.WriteString("\nAvailable Commands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				fmt.Fprintf(&out, "  %-*s %s\n", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	all := cmd.Flags().Changed(helpAll)
	out.WriteString(settings.Usage(cmd.LocalFlags(), "Flags", all))
	if cmd.HasAvailableInheritedFlags() {
		out.WriteString("\nGlobal Flags:\n" + cmd.InheritedFlags().FlagUsages())
	}
	if hasRare(cmd) && !all {
		fmt.Fprintf(&out, "\nUse \"%s --%s\" for all flags.\n", cmd.CommandPath(), helpAll)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "\nUse \"%s [command] --help\" for more information about a command.\n", cmd.CommandPath())
	}
	_, err := fmt.Fprint(cmd.OutOrStderr(), out.String())
	return err
}

// hasRare reports whether a command has flags that only --help-all lists.
func hasRare(cmd *cobra.Command) (rare bool) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { rare = rare || !f.Hidden && settings.IsRare(f) })
	return rare
}
