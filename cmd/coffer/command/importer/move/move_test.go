package move_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/ledger"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
)

func TestDifferences(t *testing.T) {
	decode := func(text string) (out map[string]any) {
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, c := range []struct {
		want, have string
		differs    []string
	}{
		{`{"a":null,"b":"","c":[],"d":{},"e":0,"f":false,"g":"0s"}`, `{}`, nil},
		{`{"a":3600}`, `{"a":"3600"}`, nil},
		{`{"a":["x","y"]}`, `{"a":["y","x"],"more":1}`, nil},
		{`{"a":["x","y"]}`, `{"a":["x"]}`, []string{"a"}},
		{`{"a":true,"b":1,"c":"x"}`, `{"a":false,"b":2,"c":"y"}`, []string{"a", "b", "c"}},
		{`{"m":{"k":"v","empty":""}}`, `{"m":{"k":"v"}}`, nil},
		{`{"m":{"k":"v"}}`, `{"m":{"k":"w"}}`, []string{"m"}},
		{`{"m":{"team":"0"}}`, `{}`, []string{"m"}}, // metadata are texts
		{`{"m":{"off":"0s"},"l":["0"]}`, `{"m":{"off":"0"},"l":["0s"]}`, []string{"l", "m"}},
	} {
		if got := move.Differences(decode(c.want), decode(c.have)); !slices.Equal(got, c.differs) {
			t.Errorf("%s and %s differ in %v, want %v", c.want, c.have, got, c.differs)
		}
	}
}

// TestRunner lets one object go through its life.
func TestRunner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l")
	var there map[string]any // at the destination
	fails := false
	run := func(mode move.Mode, overwrite bool, want string) string {
		l, err := ledger.Open(path, ledger.Header{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		report := &move.Report{}
		r := &move.Runner{Mode: mode, Overwrite: overwrite, Ledger: l, Report: report, Bar: progress.New(io.Discard, false)}
		err = r.Do(t.Context(), "things", []*move.Object{{
			Kind: "thing", Name: "one", Want: map[string]any{"field": want},
			Current: func(context.Context) (map[string]any, error) { return there, nil },
			Write: func(_ context.Context, o *move.Object) (*command.Response, error) {
				if fails {
					return nil, errors.New("rejected")
				}
				there = map[string]any{"field": o.Want["field"], "own": "x"}
				return nil, nil
			},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for action, n := range report.Totals()["thing"] {
			if n != 1 {
				t.Errorf("%d times %s", n, action)
			}
			return action
		}
		return ""
	}
	for i, step := range []struct {
		mode      move.Mode
		overwrite bool
		want      string // at the source
		change    string // made at the destination before, if any
		action    string
		after     string // at the destination
	}{
		{mode: move.Plan, want: "a", action: move.Create},
		{mode: move.Verify, want: "a", action: move.Missing},
		{mode: move.Apply, want: "a", action: move.Create, after: "a"},
		{mode: move.Apply, want: "a", action: move.Unchanged, after: "a"},
		{mode: move.Apply, want: "b", action: move.Update, after: "b"},
		{mode: move.Verify, want: "b", action: move.Unchanged, after: "b"},
		{mode: move.Plan, want: "b", change: "ours", action: move.Conflict, after: "ours"},
		{mode: move.Apply, want: "c", action: move.Conflict, after: "ours"},
		{mode: move.Verify, want: "c", action: move.Different, after: "ours"},
		{mode: move.Plan, overwrite: true, want: "c", action: move.Overwrite, after: "ours"},
		{mode: move.Apply, overwrite: true, want: "c", action: move.Overwrite, after: "c"},
	} {
		if step.change != "" {
			there = map[string]any{"field": step.change}
		}
		if got := run(step.mode, step.overwrite, step.want); got != step.action {
			t.Errorf("step %d: %s, want %s", i, got, step.action)
		}
		if after, _ := there["field"].(string); after != step.after {
			t.Errorf("step %d: then there is %q, want %q", i, after, step.after)
		}
	}
	fails = true
	if got := run(move.Apply, true, "d"); got != move.Failed {
		t.Errorf("a rejected write: %s", got)
	}
}

func TestBody(t *testing.T) {
	o := &move.Object{Want: map[string]any{
		"list": nil, "none": nil, "empty": []any{}, "text": "", "map": nil, "number": json.Number("0"), "flag": false, "value": "x",
	}, Now: map[string]any{"list": []any{"a"}, "text": "a", "map": map[string]any{"a": "b"}}}
	body, err := json.Marshal(o.Body())
	if want := `{"flag":false,"list":[],"map":{},"number":0,"text":"","value":"x"}`; err != nil || string(body) != want {
		t.Errorf("%s, %v, want %s", body, err, want)
	}
}
