package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/openbao/openbao/api/v2"
	"github.com/urfave/cli/v3"
)

// spec declares a command which does something, as data.
type spec struct {
	name, alias string
	args        string // the arguments as the usage line shows them: "PATH [KEY=VALUE …]"
	min, max    int    // how many there may be; max -1 is any number
	usage       string // one line, lower case, for lists of commands
	help        string // what it is for, with two examples
	flags       []cli.Flag
	local       bool // never talks to a server, so takes none of the connection flags
}

// command joins a spec to its function.
func command(s spec, do func(context.Context, *call) error) *cli.Command {
	flags := s.flags
	if !s.local {
		flags = append(flags, connectionFlags()...)
	}
	cmd := &cli.Command{
		Name: s.name, Usage: s.usage, ArgsUsage: s.args, Description: s.help, Flags: flags,
		// A path named "help" must stay a path, and a comma in a value a comma.
		HideHelpCommand: true, DisableSliceFlagSeparator: true,
		OnUsageError: func(_ context.Context, cmd *cli.Command, err error, _ bool) error { return flagError(cmd, err) },
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if n := cmd.Args().Len(); n < s.min || s.max >= 0 && n > s.max {
				return argumentError(cmd, s, n)
			}
			return do(ctx, &call{Command: cmd, in: cmd.Root().Reader, out: cmd.Root().Writer, err: cmd.Root().ErrWriter})
		},
	}
	if s.alias != "" {
		cmd.Aliases = []string{s.alias}
	}
	return cmd
}

// group is a command which only holds others.
func group(name, usage, help string, commands ...*cli.Command) *cli.Command {
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
			return &exitError{code: exitLocal}
		},
	}
}

// call is one execution of a command: its flags and arguments, the streams around it and the server it talks to.
type call struct {
	*cli.Command
	in       io.Reader
	out, err io.Writer
	api      *api.Client // made by client
	stdinIn  bool        // stdin has been consumed by an argument
}

// arg returns the n-th argument, or "".
func (c *call) arg(n int) string { return c.Args().Get(n) }

// path returns the n-th argument as an API path: without slashes around it, unless the last one matters to the caller.
func (c *call) path(n int) string { return cleanPath(c.arg(n)) }

func cleanPath(p string) string { return strings.Trim(strings.TrimSpace(p), "/") }

// sayf tells the user about something that went well. With -format=json or yaml stdout is for machines, so nothing is said.
func (c *call) sayf(format string, args ...any) {
	if c.format() == formatTable {
		fmt.Fprintf(c.out, format+"\n", args...)
	}
}

// warnf writes a remark to stderr.
func (c *call) warnf(format string, args ...any) { fmt.Fprintf(c.err, format+"\n", args...) }

func flagError(cmd *cli.Command, err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		text = fmt.Sprintf("there is no flag -%s", name)
		if s := cli.SuggestFlag(cmd.Flags, name, false); s != "" {
			text += fmt.Sprintf("; did you mean -%s?", strings.TrimLeft(s, "-"))
		}
	}
	return usagef("%s: %s (%s -h shows what it takes)", cmd.FullName(), text, cmd.FullName())
}

func argumentError(cmd *cli.Command, s spec, got int) error {
	want := s.args
	if want == "" {
		want = "no arguments"
	}
	return usagef("%s takes %s, got %d (%s -h shows examples)", cmd.FullName(), want, got, cmd.FullName())
}

func unknownCommand(cmd *cli.Command, name string) error {
	text := fmt.Sprintf("there is no command %q", cmd.FullName()+" "+name)
	if s := cli.SuggestCommand(cmd.Commands, name); s != "" {
		text += fmt.Sprintf("; did you mean %q?", cmd.FullName()+" "+s)
	}
	return usagef("%s (%s -h lists them)", text, cmd.FullName())
}
