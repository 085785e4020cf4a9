// Package table formats values and columns of values as text for a terminal. What it prints cannot steer the terminal: control characters are
// replaced. Start with Write and Cell.
package table

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Gap is the space between two columns, as wide as the family's.
const Gap = 4

// Write aligns rows for programs. text/tabwriter would start again after a value of several lines, such as a certificate.
func Write(w io.Writer, rows [][]string) error { return Style{}.Write(w, rows) }

// Cell is a value as a table shows it. Seconds are shown as a duration where the key says that they are one.
func Cell(key string, value any) string {
	switch v := value.(type) {
	case nil:
		return "n/a"
	case string:
		if v == "" {
			return "n/a"
		}
		return Printable(v)
	case json.Number:
		if n, err := v.Int64(); err == nil && isDuration(key) {
			return Duration(n)
		}
		return v.String()
	case int:
		if isDuration(key) {
			return Duration(int64(v))
		}
		return strconv.Itoa(v)
	case time.Time:
		return v.Format(time.RFC3339Nano)
	case map[string]any:
		if len(v) == 0 {
			return "n/a"
		}
		var out strings.Builder
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		if e.Encode(v) == nil {
			return Printable(strings.TrimSpace(out.String()))
		}
	}
	return Printable(fmt.Sprint(value))
}

func isDuration(key string) bool {
	for _, word := range []string{"ttl", "period", "duration", "interval"} {
		if key == word || strings.HasSuffix(key, "_"+word) {
			return true
		}
	}
	return false
}

// Duration writes seconds as 768h, 1h30m or 45s.
func Duration(seconds int64) string {
	if seconds <= 0 || seconds > int64(1<<62/time.Second) {
		return strconv.FormatInt(seconds, 10) + "s"
	}
	text := (time.Duration(seconds) * time.Second).String()
	if rest, ok := strings.CutSuffix(text, "m0s"); ok {
		text = rest + "m"
	}
	if rest, ok := strings.CutSuffix(text, "h0m"); ok {
		text = rest + "h"
	}
	return text
}

// Printable replaces control characters, so that a stored value cannot steer the terminal it is shown on.
func Printable(text string) string {
	if !strings.ContainsFunc(text, IsControl) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if IsControl(r) {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// IsControl reports whether a terminal would obey a character: control characters, and those that change the direction of
// writing.
func IsControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}

// Ago is how long something has been so.
func Ago(at *time.Time, now time.Time) string {
	if at == nil || at.IsZero() {
		return "-"
	}
	return Short(now.Sub(*at))
}

// Short is a duration in its largest unit.
func Short(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Text is a cell for which nil means none.
func Text(v any) string {
	if v == nil {
		v = ""
	}
	return Cell("", v)
}

func Size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
