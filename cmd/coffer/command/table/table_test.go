package table

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

func TestCell(t *testing.T) {
	tests := []struct {
		key   string
		value any
		want  string
	}{
		{"a", nil, "n/a"},
		{"a", "", "n/a"},
		{"a", "x", "x"},
		{"a", json.Number("3600"), "3600"},
		{"ttl", json.Number("3600"), "1h"},
		{"max_lease_ttl", json.Number("2764800"), "768h"},
		{"lease_duration", 5400, "1h30m"},
		{"period", json.Number("0"), "0s"},
		{"ttl", json.Number("61"), "1m1s"},
		{"ttl", json.Number("9223372036854775807"), "9223372036854775807s"},
		{"ttl", json.Number("1.5"), "1.5"},
		{"ttl", "1h", "1h"},
		{"throttle", json.Number("60"), "60"},
		{"a", []any{"x", json.Number("1")}, "[x 1]"},
		{"a", map[string]any{"b": "c", "a": true}, `{"a":true,"b":"c"}`},
		{"a", "red\x1b[31m\x07", `red\x1b[31m\a`},
		{"a", "line\nline\tend", "line\nline\tend"},
	}
	for _, tt := range tests {
		if got := Cell(tt.key, tt.value); got != tt.want {
			t.Errorf("cell(%q, %#v) = %q, want %q", tt.key, tt.value, got, tt.want)
		}
	}
}

func TestColumns(t *testing.T) {
	var out bytes.Buffer
	rows := [][]string{{"Key", "Value"}, {"---", "-----"}, {"certificate", "line 1\nline 2"}, {"größe", "x"}}
	if err := Write(&out, rows); err != nil {
		t.Fatal(err)
	}
	want := "Key            Value\n---            -----\ncertificate    line 1\nline 2\ngröße          x\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 90 * time.Second: "90s", 5 * time.Minute: "5m", 119 * time.Minute: "119m", 3 * time.Hour: "3h", 72 * time.Hour: "3d",
	} {
		if got := Short(d); got != want {
			t.Errorf("shortDuration(%v) = %q, want %q", d, got, want)
		}
	}
}
