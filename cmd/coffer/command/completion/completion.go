// Package completion answers shells that ask which words may follow: commands, flags, and names that the server knows. Its scripts need nothing
// but the shell. Start with complete.
package completion

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/kv"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/urfave/cli/v3"
)

// patience is how long a server may take for an answer to a shell.
const patience = 2 * time.Second

// scripts are for the shells that ask commandName.
var scripts = map[string]string{
	"bash": `# Completion of coffer for bash; it needs no other package.
_coffer() {
    local line="${COMP_LINE:0:COMP_POINT}" candidate word head
    local -a words
    read -ra words <<<"$line"
    if [[ $line == *[[:space:]] ]]; then words+=(""); fi
    word="${words[${#words[@]}-1]}"
    head="${word%"${word##*[=:]}"}"
    COMPREPLY=()
    while IFS= read -r candidate; do
        candidate="${candidate%%$'\t'*}"
        COMPREPLY+=("${candidate#"$head"}")
    done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _coffer coffer
`,
	"zsh": `#compdef coffer
_coffer() {
    local line
    local -a closed open
    for line in "${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        line="${line%%$'\t'*}"
        if [[ $line == *[/=] ]]; then open+=("$line"); elif [[ -n $line ]]; then closed+=("$line"); fi
    done
    if (( ${#open} + ${#closed} == 0 )); then _files; return; fi
    compadd -a closed
    compadd -S '' -a open
}
compdef _coffer coffer
`,
	"fish": `# Completion of coffer for fish.
function __coffer_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end
complete -c coffer -f -a '(__coffer_complete)'
`,
}

// commandName is the command that the scripts run, with the words up to the cursor, the last of which is to be completed.
const commandName = "__complete"

// Scripts replaces the scripts of the library where there is one of ours.
func Scripts(c *cli.Command) {
	for _, shell := range c.Commands {
		if script, ok := scripts[shell.Name]; ok {
			shell.Action = func(_ context.Context, cmd *cli.Command) error {
				_, err := io.WriteString(cmd.Root().Writer, script)
				return err
			}
		}
	}
}

// Command is what the scripts run; root builds the tree of commands.
func Command(root func() *cli.Command) *cli.Command {
	return &cli.Command{
		Name: commandName, Hidden: true, SkipFlagParsing: true, HideHelpCommand: true,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			complete(ctx, root(), cmd.Args().Slice(), cmd.Root().Writer)
			return nil
		},
	}
}

// complete prints the candidates for the last word, each with a tab and a description if there is one. Errors are silent: a shell asks.
func complete(ctx context.Context, root *cli.Command, words []string, out io.Writer) {
	if len(words) == 0 {
		words = []string{""}
	}
	before, word := words[:len(words)-1], words[len(words)-1]
	cmd, topic, arguments := walk(root, before)
	show := func(prefix string, candidates []string) {
		for _, candidate := range candidates {
			name, _, _ := strings.Cut(candidate, "\t")
			if strings.HasPrefix(prefix+name, word) && !strings.ContainsFunc(name, func(r rune) bool { return table.IsControl(r) || r == '\n' }) {
				fmt.Fprintln(out, prefix+candidate)
			}
		}
	}
	flag, value, isValue := strings.Cut(word, "=")
	switch {
	case strings.HasPrefix(word, "-") && isValue:
		show(flag+"=", values(ctx, root, cmd, before, value, flagKind(cmd, flag)))
	case strings.HasPrefix(word, "-"):
		show("", flags(cmd))
	case len(before) > 0 && takesNext(cmd, before[len(before)-1]):
		kind := flagKind(cmd, before[len(before)-1])
		show("", values(ctx, root, cmd, before[:len(before)-1], word, kind))
	case len(cmd.Commands) > 0:
		show("", commands(cmd))
	default:
		show("", values(ctx, root, cmd, before, word, argumentKind(cmd, topic, arguments)))
	}
}

// walk finds the command that words name, its topic, which is the first of them, and counts its arguments.
func walk(root *cli.Command, words []string) (cmd *cli.Command, topic string, arguments int) {
	cmd = root
	for i, w := range words {
		if strings.HasPrefix(w, "-") && w != "-" || i > 0 && takesNext(cmd, words[i-1]) {
			continue
		}
		if next := cmd.Command(w); next != nil && arguments == 0 {
			if cmd = next; topic == "" {
				topic = cmd.Name
			}
			continue
		}
		arguments++
	}
	return cmd, topic, arguments
}

// flagNamed returns the flag of a command, nil if there is none.
func flagNamed(cmd *cli.Command, word string) cli.Flag {
	name := strings.TrimLeft(word, "-")
	for _, f := range cmd.Flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// takesNext reports whether a word is a flag that has its value in the next one.
func takesNext(cmd *cli.Command, word string) bool {
	if !strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
		return false
	}
	f, ok := flagNamed(cmd, word).(cli.DocGenerationFlag)
	return ok && f.TakesValue()
}

func flags(cmd *cli.Command) (candidates []string) {
	for _, f := range cmd.Flags {
		doc, ok := f.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		name := "-" + f.Names()[0]
		if doc.TakesValue() {
			name += "="
		}
		candidates = append(candidates, name+"\t"+strings.ReplaceAll(doc.GetUsage(), "`", ""))
	}
	return candidates
}

func commands(cmd *cli.Command) (candidates []string) {
	for _, c := range cmd.Commands {
		if !c.Hidden {
			candidates = append(candidates, c.Name+"\t"+c.Usage)
		}
	}
	return candidates
}

// Kinds of values.
const (
	kindMount       = "mount"
	kindMethod      = "auth method"
	kindSecret      = "secret"
	kindPath        = "path"
	kindPolicy      = "policy"
	kindNamespace   = "namespace"
	kindDestination = "destination"
	kindContext     = "context"
	kindFormat      = "format"
)

func flagKind(cmd *cli.Command, word string) string {
	switch f := flagNamed(cmd, word); {
	case f == nil:
		return ""
	case f.Names()[0] == "namespace":
		return kindNamespace
	case slices.Contains([]string{kindMount, kindSecret, kindPolicy, kindFormat}, f.Names()[0]):
		return f.Names()[0]
	}
	return ""
}

// argumentKind is what the n-th argument of a command is.
func argumentKind(cmd *cli.Command, topic string, n int) string {
	placeholders := strings.Fields(cmd.ArgsUsage)
	if n >= len(placeholders) {
		return ""
	}
	placeholder := strings.Trim(placeholders[n], "[]…")
	switch {
	case placeholder == "DESTINATION":
		return kindDestination
	case topic == "policy" && placeholder == "NAME":
		return kindPolicy
	case topic == "namespace" && placeholder == "PATH":
		return kindNamespace
	case topic == "context" && placeholder == "NAME":
		return kindContext
	case topic == "auth" && (placeholder == "PATH" || placeholder == "MOUNT"):
		return kindMethod
	case topic == "secrets" && placeholder == "PATH", placeholder == "MOUNT":
		return kindMount
	case (topic == "kv" || topic == "export" || topic == "import" || topic == "sync") && (placeholder == "PATH" || placeholder == "SECRET"):
		return kindSecret
	case placeholder == "PATH":
		return kindPath
	}
	return ""
}

// values asks for the values of a kind. The words before are parsed by the command itself, so that its flags of the connection count.
func values(ctx context.Context, root, cmd *cli.Command, before []string, word, kind string) (found []string) {
	if kind == kindFormat {
		return []string{command.FormatTable, "json", command.FormatYAML}
	}
	if kind == kindContext {
		all, _ := local.ReadContexts()
		return slices.Sorted(maps.Keys(all.Clusters))
	}
	if kind == "" {
		return nil
	}
	cmd.Action = func(ctx context.Context, cmd *cli.Command) error {
		found = ask(ctx, command.CallOf(cmd), word, kind)
		return nil
	}
	root.Reader, root.Writer, root.ErrWriter = strings.NewReader(""), io.Discard, io.Discard
	_ = root.Run(ctx, append([]string{root.Name}, before...))
	return found
}

func ask(ctx context.Context, c *command.Call, word, kind string) []string {
	switch kind {
	case kindMount, kindMethod:
		return mounts(ctx, c, kind)
	case kindPolicy:
		return list(ctx, c, "sys/policies/acl")
	case kindNamespace:
		return list(ctx, c, "sys/namespaces")
	case kindDestination:
		return destinations(ctx, c)
	}
	folder := word[:strings.LastIndex(word, "/")+1]
	path := folder
	if kind == kindSecret {
		if folder == "" && c.String("mount") == "" {
			return mounts(ctx, c, kindMount)
		}
		p, err := kv.PathOf(ctx, c, folder)
		if err != nil {
			return nil
		}
		path = p.At("metadata")
	} else if folder == "" {
		return append(mounts(ctx, c, kindMount), "auth/", "sys/")
	}
	names := list(ctx, c, strings.TrimRight(path, "/"))
	for i := range names {
		names[i] = folder + names[i]
	}
	return names
}

func list(ctx context.Context, c *command.Call, path string) []string {
	a, err := c.Send(ctx, command.Request{Method: "LIST", Path: path, Plain: true})
	if err != nil {
		return nil
	}
	return command.StringsOf(a.Data()["keys"])
}

// mounts are the engines or auth methods that the token may use.
func mounts(ctx context.Context, c *command.Call, kind string) []string {
	a, err := c.Send(ctx, command.Request{Method: "GET", Path: "sys/internal/ui/mounts", Plain: true})
	if err != nil {
		return nil
	}
	part := "secret"
	if kind == kindMethod {
		part = "auth"
	}
	all, _ := a.Data()[part].(map[string]any)
	return slices.Sorted(maps.Keys(all))
}

func destinations(ctx context.Context, c *command.Call) (found []string) {
	a, err := c.Send(ctx, command.Request{Method: "LIST", Path: "sys/sync/destinations", Plain: true})
	if err != nil {
		return nil
	}
	info, _ := a.Data()["key_info"].(map[string]any)
	for kind, names := range info {
		for _, name := range command.StringsOf(names) {
			found = append(found, strings.Trim(kind, "/")+"/"+name)
		}
	}
	slices.Sort(found)
	return found
}
