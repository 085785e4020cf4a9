package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
	"go.yaml.in/yaml/v3"
)

const (
	FormatTable = "table"
	formatJSON  = "json"
	FormatYAML  = "yaml"
	FormatRaw   = "raw" // of "read" alone
)

func FieldFlag() cli.Flag {
	return &cli.StringFlag{Name: "field", Usage: "print only the `NAME` field, bare"}
}

// ExitCodeFlag is the flag that makes a state an exit status, for scripts.
func ExitCodeFlag(when string) cli.Flag {
	return &cli.BoolFlag{Name: "exit-code", Usage: "exit with status 2 if " + when}
}

// ExitUnless is err, else exit status 2 if -exit-code is given and a state is not reached.
func (c *Call) ExitUnless(reached bool, err error) error {
	if err == nil && !reached && c.Bool("exit-code") {
		return &ExitError{Code: ExitServer}
	}
	return err
}

func WrapFlag() cli.Flag {
	return &cli.StringFlag{Name: "wrap-ttl", Sources: WrapTTLVariables, Usage: "hide the answer behind a token which can be used once within `DURATION`"}
}

// Format is how answers are printed. An unknown one is caught by print, before anything is written.
func (c *Call) Format() string {
	switch f := strings.ToLower(c.setting("format", "FORMAT")); f {
	case "":
		return FormatTable
	case "yml":
		return FormatYAML
	default:
		return f
	}
}

// PrintResponse prints what the server sent: all of it as JSON or YAML, its rows as a table, or one field bare.
func (c *Call) PrintResponse(a *Response) error {
	c.PrintWarnings(a)
	if c.String("field") != "" {
		return c.PrintField(response.Rows(a.Secret))
	}
	if c.Format() == FormatTable {
		return c.PrintTable(response.Rows(a.Secret))
	}
	if len(a.Raw) == 0 {
		return c.CheckFormat()
	}
	return c.PrintRaw(a.Raw)
}

func (c *Call) PrintWarnings(a *Response) {
	if a.Secret == nil || len(a.Secret.Warnings) == 0 || c.Format() != FormatTable {
		return
	}
	for _, w := range a.Secret.Warnings {
		c.Warnf("%s %s", Coloring(c.Err, table.Yellow, "Warning:"), w)
	}
}

func (c *Call) CheckFormat() error {
	switch c.Format() {
	case FormatTable, formatJSON, FormatYAML:
		return nil
	}
	return Usagef("the format %q is unknown; there are table, json and yaml", c.Format())
}

// PrintRaw prints JSON in the format asked for, numbers and the order of keys untouched where the format has one.
func (c *Call) PrintRaw(raw []byte) error {
	if err := c.CheckFormat(); err != nil {
		return err
	}
	if c.Format() == formatJSON {
		var out bytes.Buffer
		if err := json.Indent(&out, raw, "", "  "); err != nil {
			return ServerErrorf("the answer is not JSON: %v", err)
		}
		out.WriteByte('\n')
		_, err := c.Out.Write(out.Bytes())
		return err
	}
	var v any
	if err := DecodeRaw(raw, &v); err != nil {
		return ServerErrorf("the answer is not JSON: %v", err)
	}
	out, err := yaml.Marshal(plainNumbers(v))
	if err != nil {
		return err
	}
	_, err = c.Out.Write(out)
	return err
}

// PrintValue prints v as JSON or YAML.
func (c *Call) PrintValue(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.PrintRaw(raw)
}

// plainNumbers replaces json.Number, which YAML would quote, by numbers. One too large for both stays text.
func plainNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plainNumbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil && !math.IsInf(f, 0) {
			return f
		}
		return v.String()
	}
	return v
}

// PrintField prints one row's value bare, with -format=json as JSON. A newline follows only on a terminal: what a script
// reads is exactly the value.
func (c *Call) PrintField(rows []response.Row) error {
	name := c.String("field")
	i := slices.IndexFunc(rows, func(r response.Row) bool { return r.Key == name })
	if i < 0 {
		return Usagef("there is no field %q in the answer", name)
	}
	value := rows[i].Value
	if c.Format() != FormatTable {
		return c.PrintValue(value)
	}
	text, err := response.Bare(value)
	if err != nil {
		return err
	}
	if IsTerminal(c.Out) {
		text += "\n"
	}
	_, err = c.Out.Write([]byte(text))
	return err
}

// PrintTable prints rows as "Key  Value", or says nothing if there are none.
func (c *Call) PrintTable(rows []response.Row) error { return c.printTable(StyleOf(c.Out), rows) }

// PrintData is PrintTable for values of users, which are shown as they are, also on a terminal.
func (c *Call) PrintData(rows []response.Row) error { return c.printTable(table.Style{}, rows) }

func (c *Call) printTable(style table.Style, rows []response.Row) error {
	if err := c.CheckFormat(); err != nil || len(rows) == 0 {
		return err
	}
	lines := [][]string{{"Key", "Value"}, {"---", "-----"}}
	for _, r := range rows {
		lines = append(lines, []string{r.Key, style.Cell(r.Key, r.Value)})
	}
	return style.Write(c.Out, lines)
}

// PrintColumns prints a table with a heading.
func (c *Call) PrintColumns(heading []string, rows [][]string) error {
	if err := c.CheckFormat(); err != nil {
		return err
	}
	rule := make([]string, len(heading))
	for i, h := range heading {
		rule[i] = strings.Repeat("-", len(h))
	}
	return StyleOf(c.Out).Write(c.Out, append([][]string{heading, rule}, rows...))
}

// PrintList prints names below a heading, or as a JSON or YAML list.
func (c *Call) PrintList(heading string, names []string) error {
	if c.Format() != FormatTable {
		if names == nil {
			names = []string{}
		}
		return c.PrintValue(names)
	}
	if heading == "" {
		for _, n := range names {
			fmt.Fprintln(c.Out, table.Printable(n))
		}
		return nil
	}
	rows := make([][]string, len(names))
	for i, n := range names {
		rows[i] = []string{table.Printable(n)}
	}
	return c.PrintColumns([]string{heading}, rows)
}

// StringsOf returns the strings in a decoded JSON list.
func StringsOf(v any) []string {
	list, _ := v.([]any)
	texts := make([]string, 0, len(list))
	for _, e := range list {
		if s, ok := e.(string); ok {
			texts = append(texts, s)
		}
	}
	return texts
}

// PrintOr prints a response unless there is an error instead.
func (c *Call) PrintOr(a *Response, err error) error {
	if err != nil {
		return err
	}
	return c.PrintResponse(a)
}

// PrintWritten prints the response of a write, or that it was done if it has none.
func (c *Call) PrintWritten(a *Response, path string) error {
	if a.Secret == nil || len(response.Rows(a.Secret)) == 0 && c.Format() == FormatTable {
		c.PrintWarnings(a)
		c.Sayf("Success! Data written to: %s", path)
		return c.CheckFormat()
	}
	return c.PrintResponse(a)
}

// NothingThere reports whether the server said "not found" and nothing else.
func NothingThere(err error) bool {
	e, ok := err.(*RequestError)
	if !ok || StatusOf(err) != http.StatusNotFound {
		return false
	}
	return e.silent()
}

const DataHelp = `DATA is KEY=VALUE, KEY=@FILE, KEY=- for stdin, @FILE with a JSON object, or - for a JSON object on stdin. A key
given twice is sent as a list.`

// ListPath prints the names below path. None at all is an error.
func ListPath(ctx context.Context, c *Call, path string) error {
	a, err := c.Send(ctx, Request{Method: "LIST", Path: path})
	if NothingThere(err) {
		return ServerErrorf("no value found at %s", path)
	}
	if err != nil {
		return err
	}
	if a.Secret != nil && a.Secret.WrapInfo != nil || c.String("field") != "" {
		return c.PrintResponse(a)
	}
	c.PrintWarnings(a)
	names := StringsOf(a.Data()["keys"])
	if len(names) == 0 {
		return ServerErrorf("no value found at %s", path)
	}
	if c.Bool("detailed") {
		return c.printDetailed(a, names)
	}
	return c.PrintList("Keys", names)
}

// printDetailed prints names with a column for each thing the response tells of any of them; all of it as JSON and YAML.
func (c *Call) printDetailed(a *Response, names []string) error {
	if c.Format() != FormatTable {
		return c.PrintValue(a.Data())
	}
	info, _ := a.Data()["key_info"].(map[string]any)
	known := map[string]bool{}
	for _, about := range info {
		if m, ok := about.(map[string]any); ok {
			for k := range m {
				known[k] = true
			}
		}
	}
	heading := append([]string{"Keys"}, slices.Sorted(maps.Keys(known))...)
	rows := make([][]string, 0, len(names))
	for _, name := range names {
		about, _ := info[name].(map[string]any)
		cells := []string{table.Printable(name)}
		for _, k := range heading[1:] {
			cells = append(cells, table.Text(about[k]))
		}
		rows = append(rows, cells)
	}
	return c.PrintColumns(heading, rows)
}

func HelpQuery() url.Values { return url.Values{"help": {"1"}} }

func (c *Call) PrintHelpResponse(a *Response, path string) error {
	if c.Format() != FormatTable {
		return c.PrintRaw(a.Raw)
	}
	var answered struct {
		Help string
		Data struct{ Help string }
	}
	if err := DecodeRaw(a.Raw, &answered); err != nil {
		return ServerErrorf("the answer holds no help: %v", err)
	}
	text := strings.TrimSpace(answered.Help)
	if text == "" {
		text = strings.TrimSpace(answered.Data.Help)
	}
	if text == "" {
		return ServerErrorf("the server has no help for %s", path)
	}
	_, err := fmt.Fprintln(c.Out, table.Printable(text))
	return err
}
