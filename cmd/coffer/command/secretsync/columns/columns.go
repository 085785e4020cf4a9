// Package columns prints the tables of "coffer sync", and colours those that a watch redraws: the words in the columns Status, Action and Drift.
package columns

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
)

// Dashed is a cell for which nothing is a dash.
func Dashed(v any) string {
	s := table.Text(v)
	if s == "n/a" || s == "0" {
		return "-"
	}
	return s
}

// Heading returns the first two rows of a table.
func Heading(names []string) [][]string {
	rule := make([]string, len(names))
	for i, h := range names {
		rule[i] = strings.Repeat("-", len(h))
	}
	return [][]string{names, rule}
}

// Print prints a table.
func Print(c *command.Call, names []string, rows [][]string) error {
	if err := c.CheckFormat(); err != nil {
		return err
	}
	return command.StyleOf(c.Out).Write(c.Out, append(Heading(names), rows...))
}

// Colours returns a function that colours the words of a table line by line, once it has seen the heading: what is in
// the column Status, Action or Drift. Whatever else is on a line stays as it is.
func Colours() func(line string) string {
	from := -1
	return func(line string) string {
		for _, name := range []string{"Status", "Action", "Drift"} {
			if i := strings.Index(line, name); from < 0 && i >= 0 {
				from = utf8.RuneCountInString(line[:i])
				return line
			}
		}
		r := []rune(line)
		if from < 0 || from >= len(r) {
			return line
		}
		word, _, _ := strings.Cut(string(r[from:]), " ")
		word = strings.TrimSuffix(word, "\n")
		code := table.ColourOf("Status", word)
		if code == "" {
			return line
		}
		return string(r[:from]) + table.Colour(code, word) + string(r[from+utf8.RuneCountInString(word):])
	}
}

// Association is how an association is called in what is said about it.
func Association(body map[string]any) string {
	name, ok := body["secret_name"]
	if !ok {
		name = body["secret_prefix"]
		if name != "*" {
			name = fmt.Sprint(name, "*")
		}
	}
	return table.Printable(fmt.Sprintf("%v/%v", body["mount"], name))
}
