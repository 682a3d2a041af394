// Package cli has the parts that the command lines of all programs share: exit codes,
// errors with suggestions, signals, --version and --help.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli/settings"
	"github.com/pdmesh/pdmesh/internal/cli/version"
)

// The exit codes. A program may have others; see Exit.
const (
	OK      = 0
	Failure = 1 // the command failed
	Usage   = 2 // the command line or a setting is invalid
)

// Main runs a program and exits with its code. SIGINT, SIGTERM and SIGHUP end the program's
// context.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	sigs := make(chan os.Signal, 2)
	signal.Notify(sigs, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(sigs, syscall.SIGHUP)
	}
	ctx, stop := withSignals(context.Background(), sigs)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// hurryKey is the key of the channel that Hurry returns.
type hurryKey struct{}

// withSignals returns a context that the first of sigs ends. stop ends it, too.
func withSignals(parent context.Context, sigs <-chan os.Signal) (ctx context.Context, stop func()) {
	hurry := make(chan struct{})
	ctx, stop = context.WithCancel(context.WithValue(parent, hurryKey{}, hurry))
	go func() { // ends with the process
		if first := <-sigs; first != os.Interrupt {
			stop()
			<-sigs
		}
		close(hurry)
		stop()
	}()
	return ctx, stop
}

// Hurry returns a channel that is closed at SIGINT, and at the second SIGTERM: the program
// of this context should then end without waiting for its clients to notice. It is nil if
// ctx is not from Main.
func Hurry(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(hurryKey{}).(chan struct{})
	return c
}

// usageError is an error of the command line or a setting.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Wrong marks an error as one of usage.
func Wrong(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// Wrongf makes an error of usage.
func Wrongf(format string, args ...any) error { return Wrong(fmt.Errorf(format, args...)) }

// IsWrong reports whether an error is one of usage.
func IsWrong(err error) bool {
	_, ok := errors.AsType[*usageError](err)
	return ok
}

// exitError is an error with an exit code. A method ExitCode would not do, because errors of
// child processes have one.
type exitError struct {
	err  error
	code int
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// Exit attaches an exit code to an error.
func Exit(err error, code int) error { return &exitError{err, code} }

// Count formats a number of things whose plural has an s.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// ShellWord returns a word of a command line, in quotes if it is empty or has characters that are special
// in a shell.
func ShellWord(w string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-"
	if w != "" && strings.Trim(w, plain) == "" {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// NoArgs refuses arguments.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// Run runs the command of a program and returns the exit code. An error of a RunE is a failure
// unless Wrong marks it; all other errors are wrong usage, with a hint at --help.
func Run(ctx context.Context, cmd *cobra.Command, args []string, stdout, stderr io.Writer) int {
	name := cmd.Name()
	if cmd.Version == "" {
		cmd.Version = version.String()
		cmd.SetVersionTemplate(name + " {{.Version}}\n")
	}
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SetFlagErrorFunc(explain)
	cmd.SetUsageFunc(usage)
	prepare(cmd)
	checkTopics(cmd, args)
	called, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return OK
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if own, ok := errors.AsType[*exitError](err); ok {
		return own.code
	}
	fmt.Fprintf(stderr, "See %s --help.\n", called.CommandPath())
	return Usage
}

// explain adds the most similar flag to the error about an unknown one, and the valid values to the
// error about a number or a switch.
func explain(cmd *cobra.Command, err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		flag := bad.GetFlag()
		// These replace the errors of package strconv; other types have their own errors.
		wanted := map[string]string{"int": "a whole number", "int64": "a whole number", "float64": "a number", "bool": "true or false"}
		if want := wanted[flag.Value.Type()]; want != "" {
			return fmt.Errorf("--%s: %w %q: must be %s", flag.Name, settings.ErrValue, bad.GetValue(), want)
		}
		if cause := bad.Unwrap(); errors.Is(cause, settings.ErrValue) {
			return fmt.Errorf("--%s: %w", flag.Name, cause)
		}
		return err
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if best := settings.Closest(names, unknown.GetSpecifiedName()); best != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, best)
	}
	return err
}

// variables is the key of the error about environment variables in a context.
type variables struct{}

// WithVariables returns a context in which no command runs if the environment has variables
// PD_... that no program knows. environ is as os.Environ returns it.
func WithVariables(ctx context.Context, environ []string) context.Context {
	if err := settings.CheckVariables(environ); err != nil {
		return context.WithValue(ctx, variables{}, err)
	}
	return ctx
}

// prepare changes a command and its subcommands. It marks errors of RunE as failures, unless they have
// an exit code or are wrong usage. It adds similar commands to the error about an unknown one, and
// --help-all to commands with rare settings.
func prepare(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err, _ := cmd.Context().Value(variables{}).(error); err != nil {
				return Wrong(err)
			}
			err := run(cmd, args)
			if _, own := errors.AsType[*exitError](err); err == nil || own || IsWrong(err) {
				return err
			}
			return Exit(err, Failure)
		}
	}
	if hasRare(cmd) {
		cmd.Flags().BoolFunc(helpAll, "help with all flags", func(string) error { return cmd.Flags().Set("help", "true") })
	}
	if check := cmd.Args; check != nil && cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil || len(args) == 0 {
				return err
			}
			return suggest(cmd, err, args[0])
		}
	}
	for _, c := range cmd.Commands() {
		prepare(c)
	}
}

// suggest adds the subcommands that are similar to arg to the error about it.
func suggest(cmd *cobra.Command, err error, arg string) error {
	cmd.SuggestionsMinimumDistance = 2
	if like := cmd.SuggestionsFor(arg); len(like) > 0 {
		return fmt.Errorf("%w; did you mean %s?", err, strings.Join(like, " or "))
	}
	return err
}

// checkTopics adds cobra's commands help and completion, which exit with 0 after an unknown argument, and
// makes such an argument an error.
func checkTopics(root *cobra.Command, args []string) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(args...)
	for _, c := range root.Commands() {
		var path []string
		switch c.Name() {
		case "help":
		case "completion":
			path = []string{c.Name()}
			c.Run = func(cmd *cobra.Command, _ []string) { _ = cmd.Help() } // without it, cobra checks no arguments
		default:
			continue
		}
		c.Args = func(_ *cobra.Command, args []string) error {
			cmd, rest, _ := root.Find(slices.Concat(path, args))
			if len(rest) == 0 {
				return nil
			}
			return suggest(cmd, fmt.Errorf("unknown command %q for %q", rest[0], cmd.CommandPath()), rest[0])
		}
	}
}
