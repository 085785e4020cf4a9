package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
	"go.yaml.in/yaml/v3"
)

const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
	formatRaw   = "raw" // of "read" alone
)

func fieldFlag() cli.Flag {
	return &cli.StringFlag{Name: "field", Usage: "print only the `NAME` field, bare"}
}

func wrapFlag() cli.Flag {
	return &cli.StringFlag{Name: "wrap-ttl", Sources: wrapTTLVariables, Usage: "hide the answer behind a token which can be used once within `DURATION`"}
}

// format is how answers are printed. An unknown one is caught by print, before anything is written.
func (c *call) format() string {
	switch f := strings.ToLower(c.setting("format", "FORMAT")); f {
	case "":
		return formatTable
	case "yml":
		return formatYAML
	default:
		return f
	}
}

// row is one line of a two-column table, and one name -field knows.
type row struct {
	key   string
	value any
}

// printAnswer prints what the server sent: all of it as JSON or YAML, its rows as a table, or one field bare.
func (c *call) printAnswer(a *answer) error {
	c.printWarnings(a)
	if c.String("field") != "" {
		return c.printField(answerRows(a))
	}
	if c.format() == formatTable {
		return c.printTable(answerRows(a))
	}
	if len(a.raw) == 0 {
		return c.checkFormat()
	}
	return c.printRaw(a.raw)
}

func (c *call) printWarnings(a *answer) {
	if a.secret == nil || len(a.secret.Warnings) == 0 || c.format() != formatTable {
		return
	}
	for _, w := range a.secret.Warnings {
		c.warnf("Warning: %s", w)
	}
}

func (c *call) checkFormat() error {
	switch c.format() {
	case formatTable, formatJSON, formatYAML:
		return nil
	}
	return usagef("the format %q is unknown; there are table, json and yaml", c.format())
}

// printRaw prints JSON in the format asked for, numbers and the order of keys untouched where the format has one.
func (c *call) printRaw(raw []byte) error {
	if err := c.checkFormat(); err != nil {
		return err
	}
	if c.format() == formatJSON {
		var out bytes.Buffer
		if err := json.Indent(&out, raw, "", "  "); err != nil {
			return serverErrorf("the answer is not JSON: %v", err)
		}
		out.WriteByte('\n')
		_, err := c.out.Write(out.Bytes())
		return err
	}
	var v any
	if err := decodeRaw(raw, &v); err != nil {
		return serverErrorf("the answer is not JSON: %v", err)
	}
	out, err := yaml.Marshal(plainNumbers(v))
	if err != nil {
		return err
	}
	_, err = c.out.Write(out)
	return err
}

// printValue prints v as JSON or YAML.
func (c *call) printValue(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.printRaw(raw)
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

// answerRows lists what an answer holds: its lease, token and wrapping, then its data by name.
func answerRows(a *answer) []row {
	s := a.secret
	if s == nil {
		return nil
	}
	var rows []row
	add := func(key string, value any) { rows = append(rows, row{key, value}) }
	switch {
	case s.LeaseID != "":
		add("lease_id", s.LeaseID)
		add("lease_duration", s.LeaseDuration)
		add("lease_renewable", s.Renewable)
	case s.LeaseDuration > 0:
		add("refresh_interval", s.LeaseDuration)
	}
	if t := s.Auth; t != nil {
		if t.MFARequirement != nil && t.ClientToken == "" {
			rows = append(rows, factorRows(t.MFARequirement)...)
			return append(rows, dataRows(s.Data)...)
		}
		add("token", t.ClientToken)
		add("token_accessor", t.Accessor)
		add("token_duration", tokenDuration(t.LeaseDuration))
		add("token_renewable", t.Renewable)
		add("token_policies", t.TokenPolicies)
		add("identity_policies", t.IdentityPolicies)
		add("policies", t.Policies)
		if t.EntityID != "" {
			add("entity_id", t.EntityID)
		}
		for _, k := range slices.Sorted(maps.Keys(t.Metadata)) {
			add("token_meta_"+k, t.Metadata[k])
		}
	}
	if w := s.WrapInfo; w != nil {
		add("wrapping_token", w.Token)
		add("wrapping_accessor", w.Accessor)
		add("wrapping_token_ttl", w.TTL)
		add("wrapping_token_creation_time", w.CreationTime)
		add("wrapping_token_creation_path", w.CreationPath)
		if w.WrappedAccessor != "" {
			add("wrapped_accessor", w.WrappedAccessor)
		}
	}
	return append(rows, dataRows(s.Data)...)
}

// tokenDuration is how long a token lives, for a table "∞" if for ever.
func tokenDuration(seconds int) any {
	if seconds == 0 {
		return forever{}
	}
	return seconds
}

// forever is shown as ∞ and stays 0 for scripts.
type forever struct{}

func (forever) String() string               { return "∞" }
func (forever) MarshalJSON() ([]byte, error) { return []byte("0"), nil }

func dataRows(data map[string]any) []row {
	rows := make([]row, 0, len(data))
	for _, k := range slices.Sorted(maps.Keys(data)) {
		rows = append(rows, row{k, data[k]})
	}
	return rows
}

// printField prints one row's value bare, with -format=json as JSON. A newline follows only on a terminal: what a script
// reads is exactly the value.
func (c *call) printField(rows []row) error {
	name := c.String("field")
	i := slices.IndexFunc(rows, func(r row) bool { return r.key == name })
	if i < 0 {
		return usagef("there is no field %q in the answer", name)
	}
	value := rows[i].value
	if c.format() != formatTable {
		return c.printValue(value)
	}
	text, err := bare(value)
	if err != nil {
		return err
	}
	if isTerminal(c.out) {
		text += "\n"
	}
	_, err = c.out.Write([]byte(text))
	return err
}

// bare is a value as a script wants it: strings and numbers as they are, anything else as JSON.
func bare(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case time.Time:
		return v.Format(time.RFC3339Nano), nil
	}
	raw, err := json.Marshal(value)
	return string(raw), err
}

// printTable prints rows as "Key  Value", or says nothing if there are none.
func (c *call) printTable(rows []row) error {
	if err := c.checkFormat(); err != nil || len(rows) == 0 {
		return err
	}
	table := [][]string{{"Key", "Value"}, {"---", "-----"}}
	for _, r := range rows {
		table = append(table, []string{r.key, cell(r.key, r.value)})
	}
	return writeColumns(c.out, table)
}

// printColumns prints a table with a heading.
func (c *call) printColumns(heading []string, rows [][]string) error {
	if err := c.checkFormat(); err != nil {
		return err
	}
	rule := make([]string, len(heading))
	for i, h := range heading {
		rule[i] = strings.Repeat("-", len(h))
	}
	return writeColumns(c.out, append([][]string{heading, rule}, rows...))
}

// printList prints names below a heading, or as a JSON or YAML list.
func (c *call) printList(heading string, names []string) error {
	if c.format() != formatTable {
		if names == nil {
			names = []string{}
		}
		return c.printValue(names)
	}
	if heading == "" {
		for _, n := range names {
			fmt.Fprintln(c.out, printable(n))
		}
		return nil
	}
	rows := make([][]string, len(names))
	for i, n := range names {
		rows[i] = []string{printable(n)}
	}
	return c.printColumns([]string{heading}, rows)
}

// stringsOf returns the strings in a decoded JSON list.
func stringsOf(v any) []string {
	list, _ := v.([]any)
	texts := make([]string, 0, len(list))
	for _, e := range list {
		if s, ok := e.(string); ok {
			texts = append(texts, s)
		}
	}
	return texts
}
