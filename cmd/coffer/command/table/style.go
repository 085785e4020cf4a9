package table

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Style is what the reader of a table can take. The zero Style is that of programs: a line for each row, exact times and no colours.
type Style struct {
	Width   int       // of the terminal in characters; 0 for any
	Now     time.Time // times are shown relative to it; zero for exact ones
	Colours bool      // words that say how something is have a colour
}

const (
	narrow = 2 // the space between columns that have to be folded
	indent = 4 // what stands before a last cell that is below its row
)

// Write aligns rows, folds those that are too wide and colours their states. If the second row is a rule, the first one is a heading.
func (s Style) Write(w io.Writer, rows [][]string) error {
	headed := len(rows) > 1 && isRule(rows[1])
	keyed := headed && rows[0][0] == "Key" && len(rows[0]) == 2
	if headed && !keyed && !s.Now.IsZero() {
		rows = s.relative(rows)
	}
	lines := make([]string, 0, len(rows))
	switch natural := widths(rows); {
	case s.Width <= 0 || span(natural, Gap) <= s.Width || len(natural) < 2:
		lines = s.align(rows, Gap, headed)
	default:
		last := len(natural) - 1
		fitted, ok := fit(rows, natural, s.Width, headed)
		switch {
		case ok || last == 1 || !headed:
			lines = s.align(wrapped(rows, fitted, headed), narrow, headed)
		case span(natural[:last], narrow) <= s.Width:
			lines = s.below(rows, last)
		default:
			lines = s.stacked(rows)
		}
	}
	_, err := io.WriteString(w, strings.Join(lines, ""))
	return err
}

func isRule(row []string) bool {
	return !slices.ContainsFunc(row, func(cell string) bool { return strings.Trim(cell, "-") != "" }) && len(row) > 0 && row[0] != ""
}

// widths are those of the columns, of which the last one's text may have several lines.
func widths(rows [][]string) []int {
	var all []int
	for _, r := range rows {
		for i, text := range r {
			if i == len(all) {
				all = append(all, 0)
			}
			if i == len(r)-1 {
				for line := range strings.Lines(text) {
					all[i] = max(all[i], utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
				}
			} else {
				all[i] = max(all[i], utf8.RuneCountInString(text))
			}
		}
	}
	return all
}

// span is the width of a table.
func span(widths []int, gap int) int {
	n := -gap
	for _, w := range widths {
		n += w + gap
	}
	return n
}

// align returns the lines of rows.
func (s Style) align(rows [][]string, gap int, headed bool) []string {
	all := make([]int, 0, 8) // the last cell of a row needs no room of its own
	for _, r := range rows {
		for i := range r[:max(len(r)-1, 0)] {
			if i == len(all) {
				all = append(all, 0)
			}
			all[i] = max(all[i], utf8.RuneCountInString(r[i]))
		}
	}
	lines := make([]string, len(rows))
	for n, r := range rows {
		var line strings.Builder
		for i, text := range r {
			title := r[0]
			if headed && len(r) == len(rows[0]) && rows[0][0] != "Key" {
				title = rows[0][i]
			}
			line.WriteString(s.coloured(title, text))
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", all[i]-utf8.RuneCountInString(text)+gap))
			}
		}
		lines[n] = line.String() + "\n"
	}
	return lines
}

// fit makes columns smaller, the widest first and none smaller than its longest word, until the table has a width.
func fit(rows [][]string, natural []int, width int, headed bool) (fitted []int, ok bool) {
	least := make([]int, len(natural))
	for n, r := range rows {
		if headed && n == 1 {
			continue
		}
		for i, text := range r {
			if strings.Contains(text, "\n") {
				least[i] = natural[i]
			}
			for _, word := range strings.Fields(text) {
				least[i] = max(least[i], utf8.RuneCountInString(word))
			}
		}
	}
	fitted = slices.Clone(natural)
	for span(fitted, narrow) > width {
		widest := -1
		for i := range fitted {
			if fitted[i] > least[i] && (widest < 0 || fitted[i] > fitted[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return fitted, false
		}
		fitted[widest]--
	}
	return fitted, true
}

// wrapped breaks the cells that are wider than their columns, at spaces, and puts what follows into rows below.
func wrapped(rows [][]string, fitted []int, headed bool) [][]string {
	var out [][]string
	for n, r := range rows {
		cells, height := make([][]string, len(r)), 1
		for i, text := range r {
			switch {
			case headed && n == 1:
				cells[i] = []string{text[:min(len(text), fitted[i])]}
			default:
				cells[i] = wrap(text, fitted[i])
			}
			height = max(height, len(cells[i]))
		}
		for y := range height {
			row := make([]string, len(r))
			for i := range r {
				if y < len(cells[i]) {
					row[i] = cells[i][y]
				}
			}
			for len(row) > 1 && row[len(row)-1] == "" && y > 0 {
				row = row[:len(row)-1]
			}
			out = append(out, row)
		}
	}
	return out
}

// wrap breaks a text at spaces. A word that is longer than width stays whole, so that it can be copied, and so does a text that has lines.
func wrap(text string, width int) []string {
	if utf8.RuneCountInString(text) <= width || strings.Contains(text, "\n") {
		return []string{text}
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// below returns the lines of a table whose last column is below the rest of each row.
func (s Style) below(rows [][]string, last int) []string {
	short := make([][]string, len(rows))
	for i, r := range rows {
		short[i] = r[:min(last, len(r))]
	}
	lines := s.align(short, narrow, true)
	for i, r := range rows {
		if len(r) <= last || i < 2 || isNone(r[last]) {
			continue
		}
		for _, line := range wrap(r[last], s.Width-indent) {
			lines[i] += strings.Repeat(" ", indent) + line + "\n"
		}
	}
	return lines
}

// stacked returns the lines of a table that has a block for each row, without what a row does not have.
func (s Style) stacked(rows [][]string) []string {
	var lines []string
	for n, r := range rows[2:] {
		if n > 0 {
			lines = append(lines, "\n")
		}
		var block [][]string
		for i, cell := range r {
			if i == 0 || !isNone(cell) {
				block = append(block, []string{rows[0][i], cell})
			}
		}
		left := widths(block)[0]
		lines = append(lines, s.align(wrapped(block, []int{left, s.Width - left - narrow}, false), narrow, false)...)
	}
	return lines
}

func isNone(cell string) bool { return cell == "" || cell == "-" || cell == "n/a" }

// relative replaces the times in the cells of a table with a heading.
func (s Style) relative(rows [][]string) [][]string {
	out := slices.Clone(rows)
	for n, r := range rows {
		for i, cell := range r {
			at, err := time.Parse(time.RFC3339Nano, cell)
			if err != nil || at.Year() < 1971 {
				continue
			}
			if &out[n][0] == &rows[n][0] {
				out[n] = slices.Clone(r)
			}
			out[n][i] = Relative(at, s.Now)
		}
	}
	return out
}

// Cell is a value as a table shows it; where the key says that it is a time, with how far away that is.
func (s Style) Cell(key string, value any) string {
	text := Cell(key, value)
	if s.Now.IsZero() || !isTime(key) {
		return text
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if n, notNumber := strconv.ParseInt(text, 10, 64); err != nil && notNumber == nil {
		at, err = time.Unix(n, 0), nil
	}
	if err != nil || at.Year() < 1971 {
		return text
	}
	return fmt.Sprintf("%s (%s)", at.UTC().Format(time.RFC3339), Relative(at, s.Now))
}

func isTime(key string) bool {
	key = strings.ReplaceAll(strings.ToLower(key), " ", "_")
	for _, suffix := range []string{"_time", "_at", "_since", "_until", "expiration", "last_renewal", "last_rotation", "next_rotation"} {
		if strings.HasSuffix(key, suffix) {
			return true
		}
	}
	return false
}

// Relative is how far a time is away, such as "in 3 days" or "5 minutes ago".
func Relative(at, now time.Time) string {
	d, format := at.Sub(now), "in %s"
	if d < 0 {
		d, format = -d, "%s ago"
	}
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		n := int64(d / unit.of)
		switch {
		case n == 1:
			return fmt.Sprintf(format, "1 "+unit.name)
		case n > 1:
			return fmt.Sprintf(format, fmt.Sprintf("%d %ss", n, unit.name))
		}
	}
	return "now"
}
