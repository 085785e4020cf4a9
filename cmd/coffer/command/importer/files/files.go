// Package files has the commands that bring secrets from files, and write them to files: variables (dotenv), JSON, and manifests of Kubernetes.
// Start reading at importFile and exportFile.
package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/move"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/coffer-project/coffer/cmd/coffer/command/progress"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/urfave/cli/v3"
)

// maxFile bounds what is read.
const maxFile = 64 << 20

// format is one kind of file.
type format struct {
	name, usage, help string
	one               bool // a file has one secret, without a name
	parse             func([]byte) (map[string]map[string]any, error)
	write             func(map[string]map[string]any) ([]byte, error)
}

var formats = []format{
	{
		name: "dotenv", usage: "variables, one secret in a file", one: true,
		help: "A file of variables (NAME=VALUE) is one secret, with a key for each.",
		parse: func(raw []byte) (map[string]map[string]any, error) {
			data, err := parseDotenv(string(raw))
			return map[string]map[string]any{"": data}, err
		},
		write: func(secrets map[string]map[string]any) ([]byte, error) {
			if len(secrets) != 1 {
				return nil, fmt.Errorf("a file of variables has one secret, and there are %d below the path: name one", len(secrets))
			}
			for _, data := range secrets {
				return writeDotenv(data)
			}
			return nil, nil
		},
	},
	{
		name: "json", usage: "a JSON object of secrets by name",
		help:  `The file is an object of secrets by their names below PATH, as in {"app/db": {"password": "…"}}.`,
		parse: parseJSON,
		write: func(secrets map[string]map[string]any) ([]byte, error) {
			var out bytes.Buffer
			e := json.NewEncoder(&out)
			e.SetEscapeHTML(false)
			e.SetIndent("", "  ")
			err := e.Encode(secrets)
			return out.Bytes(), err
		},
	},
	{
		name: "kubernetes", usage: "manifests of Secrets (YAML)",
		help:  "The file has Secrets of Kubernetes, as kubectl prints them. The name of a secret below PATH is NAMESPACE/NAME, or NAME if there is no namespace.",
		parse: parseKubernetes, write: writeKubernetes,
	},
	{
		name: "files", usage: "a file for each key",
		help: "-out names a new directory: it gets a directory for each secret, named by what follows PATH, and in that a file of mode 0600 for each key.",
	},
}

// ImportCommand is "coffer kv import".
func ImportCommand() *cli.Command {
	return command.Group("import", "read secrets from files", `Commands that write secrets from files to a key/value engine.

Examples:

  $ coffer kv import dotenv .env secret/app
  $ coffer kv import json -plan secrets.json secret/`, ImportCommands()...)
}

// ImportCommands are those of "coffer import".
func ImportCommands() []*cli.Command {
	var out []*cli.Command
	for _, f := range formats {
		if f.parse == nil {
			continue
		}
		out = append(out, command.New(command.Spec{
			Name: f.name, Args: "FILE PATH", Min: 2, Max: 2, Usage: "import " + f.usage,
			Help: f.help + ` FILE - is stdin. PATH is in a key/value engine of
either version. A secret that is there with other values is left as it is, unless -overwrite is given; the exit status is 2 then.

Examples:

  $ coffer import ` + f.name + ` -plan FILE secret/app
  $ coffer import ` + f.name + ` FILE secret/app`,
			Flags: []cli.Flag{
				mountFlag(),
				&cli.BoolFlag{Name: "plan", Usage: "change nothing, and show what would be written"},
				&cli.BoolFlag{Name: "overwrite", Usage: "replace secrets that differ"},
			},
		}, func(ctx context.Context, c *command.Call) error { return importFile(ctx, c, f) }))
	}
	return out
}

// ExportCommand is "coffer export".
func ExportCommand() *cli.Command {
	var commands []*cli.Command
	for _, f := range formats {
		commands = append(commands, command.New(command.Spec{
			Name: f.name, Args: "PATH", Min: 1, Max: 1, Usage: "export " + f.usage,
			Help: f.help + `

Writes the newest versions of the secret at PATH, or of all below it if PATH ends in a slash, to stdout or to a new file that no other user can
read. THE FILE HAS THE VALUES UNENCRYPTED.

Examples:

  $ coffer export ` + f.name + ` secret/app
  $ coffer export ` + f.name + ` -out=FILE secret/app`,
			Flags: []cli.Flag{mountFlag(), &cli.StringFlag{Name: "out", Usage: "write to the new file `FILE`"}, command.ForceFlag()},
		}, func(ctx context.Context, c *command.Call) error { return exportFile(ctx, c, f) }))
	}
	return command.Group("export", "write secrets to files", `Commands that write secrets to files, for programs that can read nothing else.

Examples:

  $ coffer export dotenv -out=.env secret/app
  $ coffer export json secret/teams/ | age -e -r age1… > secrets.age`, commands...)
}

func mountFlag() cli.Flag {
	return &cli.StringFlag{Name: "mount", Usage: "`PATH` of the engine, PATH being relative to it"}
}

// place resolves the argument that names a path in an engine.
func place(ctx context.Context, c *command.Call, n int) (kv.Path, error) {
	arg := c.Arg(n)
	if c.String("mount") == "" && strings.Trim(arg, "/") == "" {
		return kv.Path{}, command.Usagef("name the path, as in secret/app")
	}
	if _, err := c.SendingClient(); err != nil {
		return kv.Path{}, err
	}
	return kv.PathOf(ctx, c, arg)
}

func importFile(ctx context.Context, c *command.Call, f format) error {
	secrets, err := readFile(c, f)
	if err != nil {
		return command.Usagef("%s: %w", c.Arg(0), err)
	}
	base, err := place(ctx, c, 1)
	if err != nil {
		return err
	}
	if f.one && base.Name == "" {
		return command.Usagef("name the secret that the file becomes, as in secret/app")
	}
	for name := range secrets { // before the first one is written
		if err := move.CheckPath(strings.Trim(base.Mount+name, "/")); err != nil {
			return err
		}
	}
	var rows [][]string
	totals := map[string]int{}
	bar := c.Progress()
	defer bar.End()
	bar.Begin("writing secrets", len(secrets))
	for _, name := range slices.Sorted(maps.Keys(secrets)) {
		p := base
		p.Name = strings.Trim(strings.Trim(base.Name, "/")+"/"+name, "/")
		action, err := importSecret(ctx, c, p, secrets[name])
		if err != nil {
			return err
		}
		totals[action]++
		bar.Add(1)
		rows = append(rows, []string{action, table.Printable(p.Mount + p.Name)})
	}
	bar.End()
	if c.Format() != command.FormatTable {
		actions := make([]map[string]string, len(rows))
		for i, row := range rows {
			actions[i] = map[string]string{"action": row[0], "secret": row[1]}
		}
		err = c.PrintValue(map[string]any{"actions": actions, "totals": totals})
	} else {
		err = c.PrintColumns([]string{"Action", "Secret"}, rows)
	}
	if n := totals["conflict"]; err == nil && n > 0 && !c.Bool("plan") {
		err = command.ServerErrorf("%d secrets are there with other values: -overwrite replaces them", n)
	}
	return err
}

func readFile(c *command.Call, f format) (map[string]map[string]any, error) {
	in := c.In
	if name := c.Arg(0); name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, errors.Unwrap(err)
		}
		defer file.Close()
		in = file
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxFile {
		return nil, errors.New("it is too large")
	}
	secrets, err := f.parse(raw)
	if err == nil && (len(secrets) == 0 || f.one && len(secrets[""]) == 0) {
		err = errors.New("there is nothing in it")
	}
	return secrets, err
}

// newest is what a path holds.
type newest struct {
	data    map[string]any // nil if there is nothing to read
	version any            // nil if there is no secret, or version 1 of the engine
}

func read(ctx context.Context, c *command.Call, p kv.Path) (newest, error) {
	a, err := c.Get(ctx, p.At("data"))
	if command.StatusOf(err) == http.StatusNotFound {
		return newest{}, nil
	}
	if err != nil {
		return newest{}, err
	}
	if p.Version == 1 {
		return newest{data: a.Data()}, nil
	}
	data, _ := a.Data()["data"].(map[string]any)
	metadata, _ := a.Data()["metadata"].(map[string]any)
	return newest{data, metadata["version"]}, nil
}

// importSecret writes one secret, and returns what was done.
func importSecret(ctx context.Context, c *command.Call, p kv.Path, data map[string]any) (string, error) {
	now, err := read(ctx, c, p)
	if err != nil {
		return "", err
	}
	action := "create"
	switch exists := now.data != nil || now.version != nil; {
	case exists && same(now.data, data):
		return "unchanged", nil
	case exists && !c.Bool("overwrite"):
		return "conflict", nil
	case exists:
		action = "overwrite"
	}
	if c.Bool("plan") {
		return action, nil
	}
	var body any = data
	if p.Version == 2 {
		cas := now.version
		if cas == nil {
			cas = 0
		}
		body = map[string]any{"data": data, "options": map[string]any{"cas": cas}}
	}
	_, err = c.Put(ctx, p.At("data"), body)
	return action, err
}

func same(a, b map[string]any) bool {
	one, err := json.Marshal(a)
	other, otherErr := json.Marshal(b)
	return err == nil && otherErr == nil && a != nil && string(one) == string(other)
}

func exportFile(ctx context.Context, c *command.Call, f format) error {
	base, err := place(ctx, c, 0)
	if err != nil {
		return err
	}
	if out := c.String("out"); out != "" && f.write != nil {
		if err := local.Free(out, c.Bool("force")); err != nil { // before anything is read
			return command.Usagef("%w", err)
		}
	}
	r := &reader{call: c, bar: c.Progress(), secrets: map[string]map[string]any{}}
	r.bar.Begin("reading secrets", 0)
	if folder := base.Name == "" || strings.HasSuffix(base.Name, "/"); folder {
		err = r.collect(ctx, base, "")
	} else {
		err = r.export(ctx, base, base.Name[strings.LastIndex(base.Name, "/")+1:])
	}
	r.bar.End()
	secrets := r.secrets
	if err != nil {
		return err
	}
	if len(secrets) == 0 {
		return command.ServerErrorf("no value found at %s%s; a folder ends in a slash", base.Mount, base.Name)
	}
	if f.write == nil {
		return writeFiles(c, secrets)
	}
	raw, err := f.write(secrets)
	if err != nil {
		return command.Usagef("%w", err)
	}
	out := c.String("out")
	if out == "" {
		_, err := c.Out.Write(raw)
		return err
	}
	if err := local.WriteNew(out, c.Bool("force"), func(f *os.File) error { _, err := f.Write(raw); return err }); err != nil {
		return command.Usagef("%w", err)
	}
	c.Sayf("Success! Wrote %d secrets, unencrypted, to: %s", len(secrets), out)
	return nil
}

// writeFiles writes a file for each key of each secret below a new directory.
func writeFiles(c *command.Call, secrets map[string]map[string]any) error {
	out := c.String("out")
	if out == "" {
		return command.Usagef("-out names the new directory for the files")
	}
	texts := map[string]string{}
	for name, data := range secrets {
		for key, value := range data {
			at := filepath.Join(filepath.FromSlash(name), key)
			if !filepath.IsLocal(at) || strings.ContainsAny(key, "/\\\x00") || key == "." || key == ".." {
				return command.Usagef("the key %q of %s is no name of a file", key, name)
			}
			text, err := plain(value)
			if err != nil {
				return command.Usagef("the key %q of %s %w", key, name, err)
			}
			texts[at] = text
		}
	}
	if err := os.Mkdir(out, 0o700); errors.Is(err, fs.ErrExist) && !c.Bool("force") {
		return command.Usagef("%s is there already and was left as it is: name another directory, or replace files in it with -force", out)
	} else if err != nil && !errors.Is(err, fs.ErrExist) {
		return command.Usagef("%w", err)
	}
	for at, text := range texts {
		file := filepath.Join(out, at)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return command.Usagef("%w", err)
		}
		if err := local.WritePrivate(file, func(f *os.File) error { _, err := f.WriteString(text); return err }); err != nil {
			return command.Usagef("%w", err)
		}
	}
	c.Sayf("Success! Wrote %d files, unencrypted, to: %s", len(texts), out)
	return nil
}

// reader reads secrets, by what follows PATH.
type reader struct {
	call    *command.Call
	bar     *progress.Bar
	secrets map[string]map[string]any
}

// collect exports what is in a folder.
func (r *reader) collect(ctx context.Context, base kv.Path, folder string) error {
	at := base
	at.Name = base.Name + folder
	a, err := r.call.Send(ctx, command.Request{Method: "LIST", Path: strings.TrimRight(at.At("metadata"), "/")})
	if command.NothingThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range command.StringsOf(a.Data()["keys"]) {
		if strings.HasSuffix(name, "/") {
			err = r.collect(ctx, base, folder+name)
		} else {
			p := base
			p.Name = base.Name + folder + name
			err = r.export(ctx, p, folder+name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) export(ctx context.Context, p kv.Path, name string) error {
	now, err := read(ctx, r.call, p)
	if err != nil {
		return err
	}
	switch {
	case now.data != nil:
		r.secrets[name] = now.data
		r.bar.Add(1)
	case now.version != nil:
		r.call.Warnf("Warning: %s is left out, as its newest version is deleted", table.Printable(p.Mount+p.Name))
	}
	return nil
}
