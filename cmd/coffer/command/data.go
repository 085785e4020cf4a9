package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

// ParseData turns the data arguments of a command into the body of a request:
//
//	KEY=VALUE   a string; a repeated key becomes a list
//	KEY=@FILE   the content of FILE, byte for byte
//	KEY=-       the content of stdin
//	KEY=\@VALUE the string @VALUE
//	@FILE, -    a JSON object from FILE or stdin, merged in; its values keep their types
//
// Only the command line reads files: the server is never asked to.
func (c *Call) ParseData(ctx context.Context, args []string) (map[string]any, error) {
	data := map[string]any{}
	for _, arg := range args {
		if arg == "-" || strings.HasPrefix(arg, "@") {
			if err := c.mergeJSON(ctx, data, arg); err != nil {
				return nil, err
			}
			continue
		}
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return nil, Usagef("data is given as KEY=VALUE, KEY=@FILE, KEY=-, @FILE or -; the argument which is none of these begins with %q", clip(arg))
		}
		value, err := c.Expand(ctx, value)
		if err != nil {
			return nil, Usagef("%s: %w", key, err)
		}
		addValue(data, key, value)
	}
	return data, nil
}

// clip keeps enough of an argument to find it, without repeating a secret that was typed in the wrong place.
func clip(arg string) string {
	if r := []rune(arg); len(r) > 3 {
		return string(r[:3]) + "…"
	}
	return arg
}

func addValue(data map[string]any, key string, value any) {
	switch old := data[key].(type) {
	case nil:
		data[key] = value
	case []any:
		data[key] = append(old, value)
	default:
		data[key] = []any{old, value}
	}
}

func (c *Call) mergeJSON(ctx context.Context, data map[string]any, arg string) error {
	raw, err := c.Expand(ctx, arg)
	if err != nil {
		return Usagef("reading data: %w", err)
	}
	decoder := json.NewDecoder(strings.NewReader(raw))
	decoder.UseNumber()
	var object map[string]any
	if err := decoder.Decode(&object); err != nil || object == nil {
		return Usagef("reading data: %s does not hold a JSON object", Source(arg))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Usagef("reading data: %s holds more than one JSON object", Source(arg))
	}
	for k, v := range object {
		data[k] = v
	}
	return nil
}

func Source(arg string) string {
	if arg == "-" {
		return "stdin"
	}
	return strings.TrimPrefix(arg, "@")
}

// Expand returns what a value stands for: a file's content for @FILE, stdin's for -, else itself.
func (c *Call) Expand(ctx context.Context, value string) (string, error) {
	switch {
	case value == "-":
		return c.ReadStdin(ctx)
	case strings.HasPrefix(value, "@"):
		b, err := os.ReadFile(value[1:])
		return string(b), err
	case strings.HasPrefix(value, `\@`), value == `\-`:
		return value[1:], nil
	}
	return value, nil
}

// ReadStdin returns all of stdin. It can be asked for once.
func (c *Call) ReadStdin(ctx context.Context) (string, error) {
	if c.stdinIn {
		return "", errors.New("stdin was already used by an earlier argument")
	}
	c.stdinIn = true
	b, err := Interruptible(ctx, func() ([]byte, error) { return io.ReadAll(c.In) })
	if err != nil {
		return "", fmt.Errorf("reading stdin: %w", err)
	}
	return string(b), nil
}

// ReadSecret returns the secret a command needs: arg itself, the first line of stdin for "-", or, without arg, what is
// typed at a prompt that does not show it.
func (c *Call) ReadSecret(ctx context.Context, arg, prompt string) (string, error) {
	switch arg {
	case "":
		return c.Ask(ctx, prompt)
	case "-":
		text, err := c.ReadStdin(ctx)
		if err != nil {
			return "", Usagef("%w", err)
		}
		line, _, _ := strings.Cut(text, "\n")
		if line = strings.TrimSpace(line); line == "" {
			return "", Usagef("stdin was empty")
		}
		return line, nil
	}
	return strings.TrimSpace(arg), nil
}

// KeyValues reads KEY=VALUE flags into a map.
func KeyValues(flag string, values []string) (map[string]string, error) {
	m := make(map[string]string, len(values))
	for _, v := range values {
		key, value, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return nil, Usagef("-%s takes KEY=VALUE", flag)
		}
		m[key] = value
	}
	return m, nil
}

// DecodeRaw decodes a response into v, for the few whose shape is no secret's. Numbers stay exact.
func DecodeRaw(raw []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return decoder.Decode(v)
}

func ReadBounded(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it is larger than %s", table.Size(limit))
	}
	return b, err
}

// ForceFlag lets a command replace a file.
func ForceFlag() cli.Flag {
	return &cli.BoolFlag{Name: "force", Usage: "replace the file if it is there already"}
}

// SetIfGiven puts a flag that was given into a request; its field has underscores for dashes.
func SetIfGiven(c *Call, body map[string]any, flag string, value any) {
	if c.IsSet(flag) {
		body[strings.ReplaceAll(flag, "-", "_")] = value
	}
}
