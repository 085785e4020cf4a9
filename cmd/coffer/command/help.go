package command

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
)

// The library's own help shows flags with two dashes and mixes ours with those of the connection.
func init() { cli.HelpPrinter = printHelp }

// printHelp writes the help of data, a command. It has the shape the library calls, hence the ignored template.
func printHelp(w io.Writer, _ string, data any) {
	cmd, ok := data.(*cli.Command)
	if !ok {
		return
	}
	if commands := visibleCommands(cmd); len(commands) > 0 {
		fmt.Fprintf(w, "Usage: %s COMMAND\n", cmd.FullName())
		printParagraph(w, cmd)
		printCommands(w, commands)
		fmt.Fprintf(w, "\n%s COMMAND -h says more about one.\n", cmd.FullName())
		return
	}
	usage := "Usage: " + cmd.FullName()
	if len(cmd.VisibleFlags()) > 0 {
		usage += " [flags]"
	}
	fmt.Fprintln(w, strings.TrimSpace(usage+" "+cmd.ArgsUsage))
	printParagraph(w, cmd)
	own, connection := splitFlags(cmd.VisibleFlags())
	if cmd.Name == flagsCommand {
		printFlags(w, "Flags:", connection)
		return
	}
	printFlags(w, "Flags:", own)
	if len(connection) > 0 {
		fmt.Fprintf(w, "\nFlags of the connection and the output, such as -address, -namespace and -format: %s help %s\n", cmd.Root().Name, flagsCommand)
	}
}

// printCommands lists commands below the titles of their groups, in the order in which both come.
func printCommands(w io.Writer, commands []*cli.Command) {
	var titles []string
	groups := map[string][][]string{}
	width := 0
	for _, c := range commands {
		title := cmp.Or(c.Category, "Commands")
		if groups[title] == nil {
			titles = append(titles, title)
		}
		groups[title] = append(groups[title], []string{"  " + c.Name, c.Usage})
		width = max(width, len(c.Name)+2)
	}
	for _, title := range titles {
		fmt.Fprintf(w, "\n%s:\n\n", title)
		rows := groups[title]
		for i := range rows { // all groups have the same columns
			rows[i][0] += strings.Repeat(" ", width-len(rows[i][0]))
		}
		_ = StyleOf(w).Write(w, rows)
	}
}

// flagsCommand is the command whose help has the flags that all commands share.
const flagsCommand = "flags"

// FlagsCommand prints the flags that all commands share.
func FlagsCommand() *cli.Command {
	cmd := New(Spec{
		Name: flagsCommand, Usage: "show the flags of the connection and the output, which all commands have",
		Help: "Flags of all commands that talk to a server. Each has a variable of the environment, too: see coffer -h.",
	}, func(_ context.Context, c *Call) error {
		printHelp(c.Out, "", c.Command)
		return nil
	})
	return cmd
}

// InGroup puts commands below a title in the help of the command above them.
func InGroup(title string, commands ...*cli.Command) []*cli.Command {
	for _, c := range commands {
		c.Category = title
	}
	return commands
}

// visibleCommands leaves out the library's "help", though not "auth help", which is ours.
func visibleCommands(cmd *cli.Command) []*cli.Command {
	return slices.DeleteFunc(slices.Clone(cmd.Commands), func(c *cli.Command) bool {
		return c.Hidden || c.Name == "help" && c.Usage == cli.UsageCommandHelp
	})
}

func printParagraph(w io.Writer, cmd *cli.Command) {
	text := cmd.Description
	if text == "" {
		text = cmd.Usage
	}
	fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(text))
}

func splitFlags(flags []cli.Flag) (own, connection []cli.Flag) {
	for _, f := range flags {
		if cf, ok := f.(cli.CategorizableFlag); ok && cf.GetCategory() == connectionCategory {
			connection = append(connection, f)
		} else {
			own = append(own, f)
		}
	}
	return own, connection
}

func printFlags(w io.Writer, title string, flags []cli.Flag) {
	if len(flags) == 0 {
		return
	}
	rows := make([][]string, 0, len(flags))
	for _, f := range flags {
		doc, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		usage, placeholder := unquote(doc.GetUsage())
		names := f.Names()
		left := "  -" + strings.Join(names, ", -")
		if doc.TakesValue() {
			left += "=" + placeholder
		}
		if v := strings.Trim(doc.GetValue(), `"`); v != "" && v != "0" && doc.TakesValue() && doc.IsDefaultVisible() {
			usage += fmt.Sprintf(" (default %s)", v)
		}
		rows = append(rows, []string{left, usage})
	}
	fmt.Fprintf(w, "\n%s\n\n", title)
	_ = StyleOf(w).Write(w, rows)
}

// unquote takes the name of a flag's value out of its usage, where it stands between back quotes.
func unquote(usage string) (text, placeholder string) {
	before, rest, ok := strings.Cut(usage, "`")
	name, after, closed := strings.Cut(rest, "`")
	if !ok || !closed {
		return usage, "VALUE"
	}
	return before + name + after, name
}
