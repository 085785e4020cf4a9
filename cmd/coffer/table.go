package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// columnGap is the space between two columns, as wide as the family's.
const columnGap = 4

// writeColumns aligns rows. text/tabwriter would start again after a value of several lines, such as a certificate.
func writeColumns(w io.Writer, rows [][]string) error {
	var widths []int
	for _, r := range rows {
		for i, text := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if i < len(r)-1 {
				widths[i] = max(widths[i], utf8.RuneCountInString(text))
			}
		}
	}
	var out strings.Builder
	for _, r := range rows {
		for i, text := range r {
			out.WriteString(text)
			if i < len(r)-1 {
				out.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+columnGap))
			}
		}
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// cell is a value as a table shows it. Seconds are shown as a duration where the key says that they are one.
func cell(key string, value any) string {
	switch v := value.(type) {
	case nil:
		return "<nil>"
	case string:
		if v == "" {
			return "n/a"
		}
		return printable(v)
	case json.Number:
		if n, err := v.Int64(); err == nil && isDuration(key) {
			return durationText(n)
		}
		return v.String()
	case int:
		if isDuration(key) {
			return durationText(int64(v))
		}
		return strconv.Itoa(v)
	case time.Time:
		return v.Format(time.RFC3339Nano)
	}
	return printable(fmt.Sprint(value))
}

func isDuration(key string) bool {
	for _, word := range []string{"ttl", "period", "duration", "interval"} {
		if key == word || strings.HasSuffix(key, "_"+word) {
			return true
		}
	}
	return false
}

// durationText writes seconds as 768h, 1h30m or 45s.
func durationText(seconds int64) string {
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

// printable replaces control characters, so that a stored value cannot steer the terminal it is shown on.
func printable(text string) string {
	if !strings.ContainsFunc(text, isControl) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if isControl(r) {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// isControl reports whether a terminal would obey a character: control characters, and those that change the direction of
// writing.
func isControl(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
}
