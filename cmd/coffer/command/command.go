// Package command is what all commands share. A command is a Spec, which says what it is called and takes, and a function, which
// gets a Call: its flags and arguments (Arg, Path, ParseData), the streams around it, the server (Get, Put, Send) and ways to print what the
// server sent (PrintResponse, PrintTable, PrintValue). Report turns an error into its text, a hint and the exit status.
//
// Read New and Call here, then Send in client.go and PrintResponse in output.go. The commands are in the packages below, one for each topic.
package command

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command/suggest"
	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

// Spec declares a command which does something, as data.
type Spec struct {
	Name, Alias string
	Args        string // the arguments as the usage line shows them: "PATH [KEY=VALUE …]"
	Min, Max    int    // how many there may be; max -1 is any number
	Usage       string // one line, lower case, for lists of commands
	Help        string // what it is for, with two examples
	Flags       []cli.Flag
	Local       bool // never talks to a server, so takes none of the connection flags
}

// New joins a spec to its function.
func New(s Spec, do func(context.Context, *Call) error) *cli.Command {
	flags := s.Flags
	if !s.Local {
		flags = append(flags, connectionFlags()...)
	}
	cmd := &cli.Command{
		Name: s.Name, Usage: s.Usage, ArgsUsage: s.Args, Description: s.Help, Flags: flags,
		// A path named "help" must stay a path, and a comma in a value a comma.
		HideHelpCommand: true, DisableSliceFlagSeparator: true,
		OnUsageError: func(_ context.Context, cmd *cli.Command, err error, _ bool) error { return flagError(cmd, err) },
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if n := cmd.Args().Len(); n < s.Min || s.Max >= 0 && n > s.Max {
				return argumentError(cmd, s, n)
			}
			return do(ctx, CallOf(cmd))
		},
	}
	if s.Alias != "" {
		cmd.Aliases = []string{s.Alias}
	}
	return cmd
}

// Group is a command which only holds others.
func Group(name, usage, help string, commands ...*cli.Command) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Description: help, Commands: commands,
		OnUsageError: func(_ context.Context, cmd *cli.Command, err error, _ bool) error {
			if name := cmd.Args().First(); name != "" {
				return unknownCommand(cmd, name)
			}
			return flagError(cmd, err)
		},
		Action: func(_ context.Context, cmd *cli.Command) error {
			if name := cmd.Args().First(); name != "" {
				return unknownCommand(cmd, name)
			}
			printHelp(cmd.Root().ErrWriter, "", cmd)
			return &ExitError{Code: ExitLocal}
		},
	}
}

// Call is one execution of a command: its flags and arguments, the streams around it and the server it talks to.
type Call struct {
	*cli.Command
	In       io.Reader
	Out, Err io.Writer
	API      *api.Client // made by client
	stdinIn  bool        // stdin has been consumed by an argument
}

// CallOf is the execution of a command whose flags have been read.
func CallOf(cmd *cli.Command) *Call {
	return &Call{Command: cmd, In: cmd.Root().Reader, Out: cmd.Root().Writer, Err: cmd.Root().ErrWriter}
}

// Arg returns the n-th argument, or "".
func (c *Call) Arg(n int) string { return c.Args().Get(n) }

// Path returns the n-th argument as an API path: without slashes around it, unless the last one matters to the caller.
func (c *Call) Path(n int) string { return CleanPath(c.Arg(n)) }

func CleanPath(p string) string { return strings.Trim(strings.TrimSpace(p), "/") }

// Sayf tells the user about something that went well. With -format=json or yaml stdout is for machines, so nothing is said.
func (c *Call) Sayf(format string, args ...any) {
	if c.Format() == FormatTable {
		fmt.Fprintf(c.Out, format+"\n", args...)
	}
}

// Warnf writes a remark to stderr.
func (c *Call) Warnf(format string, args ...any) { fmt.Fprintf(c.Err, format+"\n", args...) }

func flagError(cmd *cli.Command, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		text = fmt.Sprintf("there is no flag -%s", name)
		var names []string
		for _, f := range cmd.Flags {
			names = append(names, f.Names()...)
		}
		if s := suggest.Name(names, name); s != "" {
			text += fmt.Sprintf("; did you mean -%s?", s)
		}
	}
	return Usagef("%s: %s (%s -h shows what it takes)", cmd.FullName(), text, cmd.FullName())
}

func argumentError(cmd *cli.Command, s Spec, got int) error {
	want := s.Args
	if want == "" {
		want = "no arguments"
	}
	return Usagef("%s takes %s, got %d (%s -h shows examples)", cmd.FullName(), want, got, cmd.FullName())
}

func unknownCommand(cmd *cli.Command, name string) error {
	text := fmt.Sprintf("there is no command %q", cmd.FullName()+" "+name)
	_, below, _ := strings.Cut(cmd.FullName()+" "+name, " ")
	var names []string
	for _, c := range visibleCommands(cmd) {
		names = append(names, c.Name)
	}
	if s := suggest.Elsewhere[below]; s != "" {
		text += ": " + s
	} else if s := suggest.Command(names, name); s != "" {
		text += fmt.Sprintf("; did you mean %q?", cmd.FullName()+" "+s)
	}
	return Usagef("%s (%s -h lists them)", text, cmd.FullName())
}
