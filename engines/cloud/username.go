package cloud

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"text/template"
	"text/template/parse"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// What names are for. It is the .Type of a template.
const (
	iamName = "IAM" // users, and sessions of roles that nobody has named
	stsName = "STS" // federated users
)

// maxNameChars are the provider's limits.
var maxNameChars = map[string]int{iamName: 64, stsName: 32}

// defaultUsernameTemplate makes "vault-<unix time>-<20 random>" for STS, and for IAM the same with the display name and the
// role behind "vault-": policies of existing installations allow "user/vault-*".
const defaultUsernameTemplate = `{{ if eq .Type "STS" }}` +
	`{{ printf "vault-%s-%s" unix_time (random 20) | truncate 32 }}` +
	`{{ else }}` +
	`{{ printf "vault-%s-%s-%s" (printf "%s-%s" .DisplayName .PolicyName | truncate 42) unix_time (random 20) | truncate 64 }}` +
	`{{ end }}`

const (
	maxTemplateBytes = 4096
	maxTextBytes     = 4096 // of what a template, or a function in it, makes
)

// nameInput is what a template is about.
type nameInput struct {
	Type        string // iamName or stsName
	DisplayName string // of the caller
	PolicyName  string // the role's name
}

// username makes a name that the provider accepts: characters that it does not know become "_". A name that is too long, or
// none at all, is the template's fault and an Error of KindFailed.
func (r *root) username(kind, displayName, roleName string) (string, error) {
	in := nameInput{Type: kind, DisplayName: displayName, PolicyName: roleName}
	name, err := renderName(r.UsernameTemplate, in, time.Now())
	if err != nil {
		return "", badTemplate(": "+templateText(err), err)
	}
	if problem := checkName(kind, name); problem != "" {
		return "", badTemplate(" "+problem, nil)
	}
	return name, nil
}

func badTemplate(why string, err error) error {
	return &engines.Error{Kind: engines.KindFailed, Detail: "username_template of config/root" + why, Err: err}
}

// checkName returns why the provider would refuse a name, "" if it would not.
func checkName(kind, name string) string {
	limit := maxNameChars[kind]
	switch {
	case len(name) > limit:
		return fmt.Sprintf("made a name of %d characters for %s, which allows %d: shorten it with truncate, or take another branch for this .Type", len(name), kind, limit)
	case len(name) < 2:
		return fmt.Sprintf("made a name of %d characters for %s, which wants 2 at least", len(name), kind)
	}
	return ""
}

// renderName executes a template, "" being the default.
func renderName(text string, in nameInput, now time.Time) (string, error) {
	t, err := parseTemplate(cmp.Or(text, defaultUsernameTemplate), now)
	if err != nil {
		return "", err
	}
	var out bounded
	if err := t.Execute(&out, in); err != nil {
		return "", err
	}
	return strings.Map(nameChar, strings.TrimSpace(out.String())), nil
}

func nameChar(c rune) rune {
	if c < 0x80 && (isAlphanumeric(c) || strings.ContainsRune("+=,.@_-", c)) {
		return c
	}
	return '_'
}

func isAlphanumeric(c rune) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// bounded is a buffer that does not grow beyond maxTextBytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxTextBytes {
		return 0, errTooMuch
	}
	return b.Buffer.Write(p)
}

// parseTemplate reads a template of the part of the language that always comes to an end soon: no loops, no templates in
// templates, and functions whose results are bounded.
func parseTemplate(text string, now time.Time) (*template.Template, error) {
	if len(text) > maxTemplateBytes {
		return nil, fmt.Errorf("is longer than %d bytes", maxTemplateBytes)
	}
	t, err := template.New("").Option("missingkey=error").Funcs(nameFuncs(now)).Parse(text)
	if err != nil {
		return nil, err
	}
	if len(t.Templates()) > 1 {
		return nil, errNested
	}
	if t.Tree == nil { // nothing but comments and blanks
		return nil, fmt.Errorf("is empty")
	}
	return t, checkNode(t.Root)
}

// builtins are the functions of the language itself that templates may use.
var builtins = map[string]bool{
	"and": true, "or": true, "not": true, "len": true,
	"eq": true, "ne": true, "lt": true, "le": true, "gt": true, "ge": true,
}

var ownFuncs = nameFuncs(time.Time{})

// checkNode refuses everything that it does not know.
func checkNode(n parse.Node) error {
	switch n := n.(type) {
	case *parse.TextNode, *parse.CommentNode, *parse.DotNode, *parse.NilNode, *parse.BoolNode, *parse.NumberNode, *parse.StringNode:
		return nil
	case *parse.FieldNode:
		return checkField(n.Ident)
	case *parse.VariableNode:
		if len(n.Ident) == 1 {
			return nil
		}
		return checkField(n.Ident[1:])
	case *parse.IdentifierNode:
		if _, ours := ownFuncs[n.Ident]; !ours && !builtins[n.Ident] {
			return fmt.Errorf("function %q cannot be used here", n.Ident)
		}
		return nil
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		return checkNodes(n.Nodes)
	case *parse.ActionNode:
		return checkNode(n.Pipe)
	case *parse.PipeNode:
		return checkNodes(n.Cmds)
	case *parse.CommandNode:
		return checkNodes(n.Args)
	case *parse.IfNode:
		return checkNodes([]parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.WithNode:
		return checkNodes([]parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.TemplateNode:
		return errNested
	case *parse.RangeNode:
		return fmt.Errorf("loops (range) cannot be used here")
	}
	return fmt.Errorf("%q cannot be used here", n.String())
}

func checkNodes[N parse.Node](nodes []N) error {
	for _, n := range nodes {
		if err := checkNode(n); err != nil {
			return err
		}
	}
	return nil
}

// checkField knows the fields of nameInput.
func checkField(path []string) error {
	if name := strings.Join(path, "."); name != "Type" && name != "DisplayName" && name != "PolicyName" {
		return fmt.Errorf("there is no .%s: there are .Type, .DisplayName and .PolicyName", name)
	}
	return nil
}

// templateText is the part of an error of a template that says something to whoever wrote it.
func templateText(err error) string {
	text := strings.TrimPrefix(err.Error(), "template: ")
	text = strings.TrimLeft(text, ":")
	const longest = 300
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}

// checkTemplate returns what keeps a template from working at all, or what should be known about it.
func checkTemplate(text string) (problem string, warnings []string) {
	now := time.Now()
	for _, kind := range []string{iamName, stsName} {
		in := nameInput{Type: kind, DisplayName: "token", PolicyName: "role"}
		name, err := renderName(text, in, now)
		if err != nil {
			return templateText(err), nil
		}
		if problem := checkName(kind, name); problem != "" {
			warnings = append(warnings, problem+": such credentials will be refused")
			continue
		}
		if again, err := renderName(text, in, now.Add(time.Hour)); err == nil && again == name {
			warnings = append(warnings, "makes the same name again for "+kind+": a user that exists cannot be made twice; add (random 20)")
		}
		in.DisplayName, in.PolicyName = strings.Repeat("d", 128), strings.Repeat("r", 128)
		long, err := renderName(text, in, now)
		if err == nil && checkName(kind, long) != "" {
			warnings = append(warnings, fmt.Sprintf("makes names of more than %d characters for %s when the display name or the role's name is long: such credentials will be refused: shorten it with truncate", maxNameChars[kind], kind))
		}
	}
	return "", warnings
}
