package files

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// parseDotenv reads lines of NAME=VALUE. Values may be in single quotes, as they are, or in double quotes, with \n, \t, \r, \", \\, \$ and \`;
// both may go over several lines. Of other values what is behind " #" is a comment. Nothing is expanded. Errors hold no values.
func parseDotenv(text string) (map[string]any, error) {
	out := map[string]any{}
	lines := strings.Count(text, "\n") + 1
	for text = strings.ReplaceAll(text, "\r\n", "\n"); text != ""; {
		line, rest, _ := strings.Cut(text, "\n")
		at := lines - strings.Count(text, "\n")
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' {
			text = rest
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(trimmed, "export "), "=")
		name = strings.TrimSpace(name)
		if !ok || !variable.MatchString(name) {
			return nil, fmt.Errorf("line %d is not NAME=VALUE, with letters, digits and _ in the name", at)
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("line %d: %s is there twice", at, name)
		}
		value = strings.TrimLeft(value, " \t")
		if value == "" || value[0] != '"' && value[0] != '\'' {
			value, _, _ = strings.Cut(value, " #")
			out[name], text = strings.TrimSpace(value), rest
			continue
		}
		quote := value[0]
		begin := strings.Index(text, "=")
		begin += strings.IndexByte(text[begin:], quote) + 1
		value, rest, ok = unquote(text[begin:], quote)
		if !ok {
			return nil, fmt.Errorf("line %d: the value of %s has no end, or a backslash with another character", at, name)
		}
		behind, rest, _ := strings.Cut(rest, "\n")
		if behind = strings.TrimSpace(behind); behind != "" && behind[0] != '#' {
			return nil, fmt.Errorf("line %d: there is something behind the quotes of %s", at, name)
		}
		out[name], text = value, rest
	}
	return out, nil
}

// unquote returns the text before the closing quote, and what is behind it.
func unquote(text string, quote byte) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == quote:
			return b.String(), text[i+1:], true
		case c == '\\' && quote == '"':
			i++
			if i == len(text) {
				return "", "", false
			}
			switch text[i] {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			case 'r':
				b.WriteByte('\r')
			case '"', '\\', '$', '`':
				b.WriteByte(text[i])
			default:
				return "", "", false
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "`", "\\`")

// writeDotenv is the inverse of parseDotenv, in a form that shells read, too.
func writeDotenv(data map[string]any) ([]byte, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(data)) {
		if !variable.MatchString(name) {
			return nil, fmt.Errorf("the key %q is no name of a variable, which has letters, digits and _ only, and no digit at first", name)
		}
		text, err := plain(data[name])
		if err != nil {
			return nil, fmt.Errorf("the key %q %w", name, err)
		}
		if strings.Contains(text, "\x00") {
			return nil, fmt.Errorf("the key %q has a zero byte, which variables cannot have", name)
		}
		fmt.Fprintf(&b, "%s=\"%s\"\n", name, escapes.Replace(text))
	}
	return []byte(b.String()), nil
}
