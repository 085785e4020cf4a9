// Package columns prints the tables of "coffer sync", in which the words that say how something is have a colour: those of the columns
// Status, Action and Drift.
package columns

import (
	"bytes"
	"fmt"
	"io"
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

// Print prints a table whose column Status is coloured.
func Print(c *command.Call, names []string, rows [][]string) error {
	if err := c.CheckFormat(); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := table.Write(&out, append(Heading(names), rows...)); err != nil {
		return err
	}
	return PrintText(c, out.String())
}

// PrintText prints a text that has such tables, coloured on a terminal.
func PrintText(c *command.Call, text string) error {
	colour := Colours()
	for line := range strings.Lines(text) {
		if command.Coloured(c.Out) {
			line = colour(line)
		}
		if _, err := io.WriteString(c.Out, line); err != nil {
			return err
		}
	}
	return nil
}

const (
	green, yellow, red, magenta = "32", "33", "31", "35"
)

// wordColours are those of the words in columns Status and Action.
var wordColours = map[string]string{
	"SYNCED": green, "ok": green, "create": green, "none": green,
	"PENDING": yellow, "SYNCING": yellow, "UNSYNCING": yellow, "UNSYNCED": yellow, "unknown": yellow, "update": yellow, "recover": yellow, "forget": yellow, "retain": yellow, "wait": yellow,
	"CONFLICT": magenta, "conflict": magenta, "adopt": magenta, "changed": magenta, "missing": magenta,
	"CLIENT_SIDE_ERROR": red, "EXTERNAL_SERVICE_ERROR": red, "INTERNAL_VAULT_ERROR": red, "failed": red, "delete": red, "refuse": red,
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
		code := wordColours[strings.TrimSuffix(word, "\n")]
		if code == "" {
			return line
		}
		word = strings.TrimSuffix(word, "\n")
		return string(r[:from]) + "\x1b[" + code + "m" + word + "\x1b[0m" + string(r[from+utf8.RuneCountInString(word):])
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
