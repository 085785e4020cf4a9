package jsontext_test

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/input/jsontext"
)

// TestAppend compares with encoding/json.
func TestAppend(t *testing.T) {
	for _, v := range []any{
		nil, true, false, 0, -7, int64(math.MinInt64), uint64(math.MaxUint64), 1.5, "", "plain", `"quoted\`, "a\nb", "<a&b>", "\xff", "\u2028", "ä",
		[]string(nil), []string{}, []string{"a", "b\t"}, map[string]any(nil), map[string]any{}, map[string]string{"b": "1", "a": "2"},
		map[string]any{"z": 1, "a": map[string]any{"n\n": nil, "l": []any{1, "x"}}, "t": time.Unix(0, 0).UTC(), "raw": json.RawMessage(`{ "k": 1 }`)},
		struct {
			A int `json:"a"`
		}{3}, json.RawMessage(`[1, 2]`),
	} {
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
		got, err := jsontext.Append([]byte("before "), v)
		if err != nil || string(got)+"\n" != "before "+want.String() {
			t.Errorf("Append(%#v) = %q, %v, want %q", v, got, err, want.String())
		}
	}
	for _, v := range []any{math.NaN(), map[string]any{"a": func() {}}, map[string]any{"a": map[string]any{"b": math.Inf(1)}}} {
		if _, err := jsontext.Append(nil, v); err == nil {
			t.Errorf("Append(%T): no error", v)
		}
	}
}
