package kv

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/urfave/cli/v3"
)

func editCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "edit", Args: "PATH", Min: 1, Max: 1, Usage: "change a secret in an editor",
		Help: `Opens the newest version of a secret as JSON in the editor that VISUAL or EDITOR names (vi), and writes what was saved. A secret that is not
there starts empty. The file is in memory where the system has a directory for that, no other user can read it, and it is removed.

In version 2 of the engine nothing is written if another client has changed the secret meanwhile. If the write fails, the file stays and is named.

Examples:

  $ coffer kv edit secret/app
  $ EDITOR='code --wait' coffer kv edit -mount=secret app`,
		Flags: []cli.Flag{mountFlag()},
	}, edit)
}

func edit(ctx context.Context, c *command.Call) error {
	if _, err := c.SendingClient(); err != nil {
		return err
	}
	p, err := pathArg(ctx, c)
	if err != nil {
		return err
	}
	old, version, err := current(ctx, c, p)
	if err != nil {
		return err
	}
	before, err := indented(old)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(memory(), "coffer-edit-")
	if err != nil {
		return command.Usagef("making a file to edit: %w", err)
	}
	file := filepath.Join(dir, "secret.json")
	edited, err := editFile(c, file, before)
	if err != nil || bytes.Equal(edited, before) {
		_ = os.RemoveAll(dir)
		if err == nil {
			c.Sayf("Nothing was changed.")
		}
		return err
	}
	data, err := parseObject(edited)
	if err == nil && reflect.DeepEqual(data, old) {
		_ = os.RemoveAll(dir)
		c.Sayf("Nothing was changed.")
		return nil
	}
	if err == nil {
		var body any = data
		if p.Version == 2 {
			body = writeBody(c, data, version)
		}
		var a *command.Response
		if a, err = c.Put(ctx, p.At("data"), body); err == nil {
			_ = os.RemoveAll(dir)
			if p.Version == 1 {
				return c.PrintWritten(a, p.At("data"))
			}
			return printVersion(c, p, a)
		}
	}
	c.Warnf("Nothing was written. What you typed is kept, unencrypted, in %s: remove it when it is used.", file)
	return err
}

// current reads the newest data of a secret, {} if there is none, and the version that a write replaces.
func current(ctx context.Context, c *command.Call, p Path) (map[string]any, int, error) {
	a, err := readVersion(ctx, c, p, 0, true)
	if command.StatusOf(err) == http.StatusNotFound {
		return map[string]any{}, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if p.Version == 1 {
		return a.Data(), 0, nil
	}
	data, number, err := newest(ctx, c, p)
	if data == nil {
		data = map[string]any{}
	}
	return data, number, err
}

// memory is a directory in memory, "" for the usual one of temporary files.
func memory() string {
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/dev/shm"} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// editFile lets the user change a text in a file, and returns what was saved.
func editFile(c *command.Call, file string, text []byte) ([]byte, error) {
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, command.Usagef("writing the file to edit: %w", err)
	}
	words := append(strings.Fields(cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")), file)
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.In, c.Out, c.Err
	if err := cmd.Run(); err != nil {
		return nil, command.Usagef("the editor %s: %w; VISUAL or EDITOR names another", words[0], err)
	}
	return os.ReadFile(file)
}

func indented(data map[string]any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(data)
	return out.Bytes(), err
}

// parseObject reads a JSON object. An error says where, without the text.
func parseObject(raw []byte) (map[string]any, error) {
	var value json.RawMessage
	var syntax *json.SyntaxError
	if err := json.Unmarshal(raw, &value); errors.As(err, &syntax) {
		return nil, command.Usagef("line %d of what was saved is not JSON", 1+bytes.Count(raw[:syntax.Offset], []byte("\n")))
	}
	var data map[string]any
	if err := command.DecodeRaw(raw, &data); err != nil || data == nil {
		return nil, command.Usagef("what was saved is not a JSON object")
	}
	return data, nil
}

func diffCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "diff", Args: "PATH [PATH]", Min: 1, Max: 2, Usage: "show what differs between versions, or secrets",
		Help: `Shows the keys that differ between the newest version of a secret and the one before, or between the versions that -versions names, or between
the newest versions of two secrets. Lines with - are of the first, lines with + of the second. -names leaves the values out.

Examples:

  $ coffer kv diff secret/app
  $ coffer kv diff -versions=3,5 -names secret/app
  $ coffer kv diff -exit-code secret/staging/app secret/prod/app`,
		Flags: []cli.Flag{
			mountFlag(), &cli.StringSliceFlag{Name: "versions", Usage: "compare version `N,M`"},
			&cli.BoolFlag{Name: "names", Usage: "show names of keys, and no values"}, command.ExitCodeFlag("they differ"),
		},
	}, diff)
}

func diff(ctx context.Context, c *command.Call) error {
	one, other, err := compared(ctx, c)
	if err != nil {
		return err
	}
	var lines []string
	changes := map[string][]string{"added": {}, "removed": {}, "changed": {}}
	line := func(sign, key string, value any) error {
		if c.Bool("names") {
			lines = append(lines, sign+" "+table.Printable(key))
			return nil
		}
		text, err := response.Bare(value)
		lines = append(lines, fmt.Sprintf("%s %s: %s", sign, table.Printable(key), table.Printable(text)))
		return err
	}
	keys := maps.Clone(one)
	maps.Copy(keys, other)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		before, was := one[key]
		after, is := other[key]
		switch {
		case was && is && reflect.DeepEqual(before, after):
			continue
		case was && is:
			changes["changed"] = append(changes["changed"], key)
		case was:
			changes["removed"] = append(changes["removed"], key)
		default:
			changes["added"] = append(changes["added"], key)
		}
		if was {
			err = errors.Join(err, line("-", key, before))
		}
		if is {
			err = errors.Join(err, line("+", key, after))
		}
	}
	if err != nil {
		return err
	}
	if c.Format() != command.FormatTable {
		err = c.PrintValue(changes) // names only, whatever the flags
	} else {
		for _, l := range lines {
			fmt.Fprintln(c.Out, l)
		}
	}
	if err == nil && len(lines) > 0 && c.Bool("exit-code") {
		return &command.ExitError{Code: command.ExitServer}
	}
	return err
}

// compared reads the two sides of a comparison.
func compared(ctx context.Context, c *command.Call) (one, other map[string]any, err error) {
	numbers, err := versions(c)
	if err != nil {
		return nil, nil, err
	}
	if c.Args().Len() == 2 {
		if numbers != nil {
			return nil, nil, command.Usagef("-versions goes with one PATH")
		}
		if one, err = newestAt(ctx, c, c.Arg(0)); err == nil {
			other, err = newestAt(ctx, c, c.Arg(1))
		}
		return one, other, err
	}
	if numbers != nil && len(numbers) != 2 {
		return nil, nil, command.Usagef("-versions takes two versions, such as -versions=3,5")
	}
	p, err := versionedPath(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	if numbers == nil {
		_, newest, err := newest(ctx, c, p)
		if err != nil {
			return nil, nil, err
		}
		if newest < 2 {
			return nil, nil, command.ServerErrorf("%s has one version only", p.At("data"))
		}
		numbers = []int{newest - 1, newest}
	}
	if one, err = versionAt(ctx, c, p, numbers[0]); err == nil {
		other, err = versionAt(ctx, c, p, numbers[1])
	}
	return one, other, err
}

func newestAt(ctx context.Context, c *command.Call, arg string) (map[string]any, error) {
	p, err := PathOf(ctx, c, arg)
	if err != nil {
		return nil, err
	}
	return versionAt(ctx, c, p, 0)
}

// versionAt is the data of a version, 0 being the newest. A deleted one is an error.
func versionAt(ctx context.Context, c *command.Call, p Path, version int) (map[string]any, error) {
	a, err := readVersion(ctx, c, p, version, false)
	if command.StatusOf(err) == http.StatusNotFound {
		return nil, command.ServerErrorf("%s has no version %d", p.At("data"), version)
	}
	if err != nil {
		return nil, err
	}
	if p.Version == 1 {
		return a.Data(), nil
	}
	data, ok := a.Data()["data"].(map[string]any)
	if !ok {
		metadata, _ := a.Data()["metadata"].(map[string]any)
		return nil, deletedVersion(p, metadata)
	}
	return data, nil
}

// PrintData prints a response that has a secret of version 2 of the engine like "kv get" does, wherever it comes from. It reports
// whether the response was one.
func PrintData(c *command.Call, a *command.Response) (bool, error) {
	data, ok := a.Data()["data"].(map[string]any)
	metadata, versioned := a.Data()["metadata"].(map[string]any)
	if !ok || !versioned || metadata["version"] == nil || metadata["created_time"] == nil || len(a.Data()) != 2 || a.Secret.WrapInfo != nil {
		return false, nil
	}
	if name := c.String("field"); name != "" {
		if _, outer := a.Data()[name]; outer {
			return false, nil
		}
		return true, c.PrintField(response.Data(data))
	}
	if c.Format() != command.FormatTable {
		return false, nil
	}
	c.PrintWarnings(a)
	if err := printTitled(c, "Metadata", response.Data(metadata)); err != nil {
		return true, err
	}
	fmt.Fprintln(c.Out)
	return true, printSecret(c, response.Data(data))
}
