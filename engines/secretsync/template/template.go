// Package template works out what a secret should be at a destination: the names, and the value under each. It is pure: the same
// of the same, on any node. Start reading at Plan.Items.
package template

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/engines/nametemplate"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// The formats of values.
const (
	JSON   = "json"
	Raw    = "raw"
	Dotenv = "dotenv" // of whole secrets
)

// Source is the secret that a name is made for: the fields of templates.
type Source struct {
	DestinationType   string
	DestinationName   string
	NamespacePath     string // without trailing slash, "" for root
	NamespaceBaseName string
	NamespaceID       string
	MountPath         string // without trailing slash
	MountBaseName     string
	MountAccessor     string
	SecretPath        string
	SecretBaseName    string
	SecretKey         string // "" with destination.SecretPath
}

var fields = []string{
	"DestinationType", "DestinationName", "NamespacePath", "NamespaceBaseName", "NamespaceID", "MountPath", "MountBaseName",
	"MountAccessor", "SecretPath", "SecretBaseName", "SecretKey",
}

// Plan is how secrets become items.
type Plan struct {
	Rules       destination.Rules
	Granularity string // "": the rules' default
	Template    string // "": the rules' default
	Format      string // "": JSON for whole secrets, Raw for keys
	// Include and Exclude choose keys by name, with "*" for any text. Without Include all are chosen.
	Include []string
	Exclude []string
	// Rename has what keys are called at the destination, by their own names.
	Rename map[string]string
	// ValueTemplate makes the values, in place of a format; "": none.
	ValueTemplate string
}

// Item is one name with its value.
type Item struct {
	Name  string // as the destination is to write it
	Key   string // of the secret, "" for all of it
	Value []byte
	// Object says that Value is a whole secret: a JSON object with its keys.
	Object bool
	// Problem says why it cannot be written, "" if it can. It tells no value.
	Problem string
}

// MaxItems bounds the names of one secret: they are in one record. Who writes a secret chooses how many keys it has.
const MaxItems = 500

// TooManyKeys is the error for a secret with more keys than MaxItems. Nothing is worked out for it.
type TooManyKeys int

func (n TooManyKeys) Error() string {
	return fmt.Sprintf("the secret has %d keys, of which %d can be synced at most: choose some with include, or granularity secret-path", int(n), MaxItems)
}

// Keys reports whether every key of a secret gets a name of its own.
func (p *Plan) Keys() bool { return p.granularity() == destination.SecretKey }

func (p *Plan) granularity() string {
	if p.Granularity == "" {
		return p.Rules.Granularity
	}
	return p.Granularity
}

func (p *Plan) format() string {
	switch {
	case p.Format != "":
		return p.Format
	case p.Keys():
		return Raw
	}
	return JSON
}

// TemplateText returns the template in force.
func (p *Plan) TemplateText() string {
	switch {
	case p.Template != "":
		return p.Template
	case p.Keys():
		return p.Rules.Template + "/{{ .SecretKey }}"
	}
	return p.Rules.Template
}

// Check returns everything that is wrong with the plan itself, by field.
func (p *Plan) Check() (problems []string) {
	if p.Granularity != "" && p.Granularity != destination.SecretPath && p.Granularity != destination.SecretKey {
		problems = append(problems, `field "granularity": must be "secret-path" or "secret-key"`)
	}
	problems = append(problems, p.checkValues()...)
	for name, globs := range map[string][]string{"include": p.Include, "exclude": p.Exclude} {
		if slices.Contains(globs, "") {
			problems = append(problems, fmt.Sprintf("field %q: has an empty name", name))
		}
	}
	if problem := p.checkTemplate(); problem != "" {
		problems = append(problems, `field "secret_name_template": `+problem)
	}
	slices.Sort(problems)
	return problems
}

func (p *Plan) checkTemplate() string {
	t, err := nametemplate.Parse(p.TemplateText(), fields, nil)
	if err != nil {
		return nametemplate.Text(err)
	}
	one := Source{
		DestinationType: "type", DestinationName: "name", NamespaceID: "root", MountPath: "kv", MountBaseName: "kv", MountAccessor: "kv_12345678",
		SecretPath: "folder/one", SecretBaseName: "one",
	}
	if p.Keys() {
		one.SecretKey = "ONE"
	}
	name, err := t.Execute(one)
	if err != nil {
		return nametemplate.Text(err)
	}
	if problem := p.Rules.CheckName(p.Rules.Normalise(name)); problem != "" {
		if !p.Keys() && strings.Contains(p.TemplateText(), ".SecretKey") {
			problem += " (.SecretKey is empty with granularity secret-path)"
		}
		return fmt.Sprintf("makes names such as %q: %s", p.Rules.Normalise(name), problem)
	}
	if !p.Keys() {
		return ""
	}
	one.SecretKey = "TWO"
	if other, err := t.Execute(one); err == nil && p.fold(p.Rules.Normalise(other)) == p.fold(p.Rules.Normalise(name)) {
		return "makes the same name for every key: use .SecretKey in it"
	}
	return ""
}

func (p *Plan) fold(name string) string {
	if p.Rules.Fold == nil {
		return name
	}
	return p.Rules.Fold(name)
}

// NewSource returns the source that a secret is; paths may end in "/".
func NewSource(kind, name, namespacePath, namespaceID, mountPath, accessor, secret string) Source {
	namespacePath, mountPath = strings.TrimSuffix(namespacePath, "/"), strings.TrimSuffix(mountPath, "/")
	base := func(p string) string {
		if p == "" {
			return ""
		}
		return path.Base(p)
	}
	return Source{
		DestinationType: kind, DestinationName: name, NamespacePath: namespacePath, NamespaceBaseName: base(namespacePath), NamespaceID: namespaceID,
		MountPath: mountPath, MountBaseName: base(mountPath), MountAccessor: accessor, SecretPath: secret, SecretBaseName: base(secret),
	}
}

// Items returns what is to be at the destination, ordered by key. data is the secret, a JSON object. The error is about the
// template, and meant for its author.
func (p *Plan) Items(src Source, data json.RawMessage) ([]Item, error) {
	var secret map[string]json.RawMessage
	if err := json.Unmarshal(data, &secret); err != nil {
		return nil, fmt.Errorf("the secret is not a JSON object")
	}
	maps.DeleteFunc(secret, func(key string, _ json.RawMessage) bool { return !p.chosen(key) })
	if len(secret) == 0 {
		return nil, nil
	}
	if p.Keys() && len(secret) > MaxItems {
		return nil, TooManyKeys(len(secret))
	}
	t, err := nametemplate.Parse(p.TemplateText(), fields, nil)
	if err != nil {
		return nil, fmt.Errorf("secret_name_template: %s", nametemplate.Text(err))
	}
	value, err := p.valueOf(src, secret)
	if err != nil {
		return nil, fmt.Errorf("value_template: %s", nametemplate.Text(err))
	}
	if !p.Keys() {
		it := Item{Object: value == nil && p.format() == JSON}
		if value == nil {
			it.Value, it.Problem = p.whole(secret)
		} else if it.Value, err = value(""); err != nil {
			return nil, fmt.Errorf("value_template: %s", nametemplate.Text(err))
		}
		if it.Problem == "" {
			it.Problem = p.checkValue(it.Value)
		}
		return p.named(t, src, []Item{it})
	}
	var items []Item
	for _, key := range slices.Sorted(maps.Keys(secret)) {
		it := Item{Key: key}
		if value == nil {
			it.Value = p.one(secret[key])
		} else if it.Value, err = value(key); err != nil { // it may be this key
			it.Problem = "value_template: " + nametemplate.Text(err)
			items = append(items, it)
			continue
		}
		it.Problem = p.checkValue(it.Value)
		items = append(items, it)
	}
	return p.named(t, src, items)
}

// named gives items their names. Of keys that would share one none gets it: a key that is added takes no name from another.
func (p *Plan) named(t *nametemplate.Template, src Source, items []Item) ([]Item, error) {
	taken := map[string]*Item{}
	for i := range items {
		it := &items[i]
		src.SecretKey = p.external(it.Key)
		name, err := t.Execute(src)
		if err != nil && !p.Keys() {
			return nil, fmt.Errorf("secret_name_template: %s", nametemplate.Text(err))
		}
		if err != nil { // it may be this key, for instance too long a one
			it.Problem = "secret_name_template: " + nametemplate.Text(err)
			continue
		}
		it.Name = p.Rules.Normalise(strings.TrimSpace(name))
		if problem := p.Rules.CheckName(it.Name); problem != "" {
			it.Problem = fmt.Sprintf("the name %q: %s", abbreviate(it.Name), problem)
			continue
		}
		if other := taken[p.fold(it.Name)]; other != nil {
			it.Problem, other.Problem = shares(it, other), cmp.Or(other.Problem, shares(other, it))
			continue
		}
		taken[p.fold(it.Name)] = it
	}
	return items, nil
}

func shares(it, other *Item) string {
	return fmt.Sprintf("the name %q is that of the key %q, too: choose another secret_name_template, or exclude one of the keys", it.Name, abbreviate(other.Key))
}

// abbreviate bounds the length of a name in an error, without cutting through a rune.
func abbreviate(name string) string {
	const maxBytes = 200
	if len(name) > maxBytes {
		return strings.ToValidUTF8(name[:maxBytes], "") + "…"
	}
	return name
}

func (p *Plan) checkValue(value []byte) string {
	switch {
	case len(value) > p.Rules.MaxValue:
		return fmt.Sprintf("the value is %d bytes long, the destination takes %d at most", len(value), p.Rules.MaxValue)
	case len(value) < p.Rules.MinValue:
		return fmt.Sprintf("the value is %d bytes long, the destination wants %d at least", len(value), p.Rules.MinValue)
	case p.Rules.CheckValue != nil:
		return p.Rules.CheckValue(value)
	}
	return ""
}

// whole returns the value of a secret under one name.
func (p *Plan) whole(secret map[string]json.RawMessage) (value []byte, problem string) {
	if secret, problem = p.renamed(secret); problem != "" {
		return nil, problem
	}
	switch p.format() {
	case Dotenv:
		return dotenv(secret)
	case JSON:
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(secret); err != nil { // with sorted keys
			return nil, "the secret cannot be encoded"
		}
		return bytes.TrimSuffix(b.Bytes(), []byte("\n")), ""
	}
	if len(secret) != 1 {
		return nil, fmt.Sprintf("the format raw takes one key, the secret has %d: choose one with include, or granularity secret-key", len(secret))
	}
	for _, v := range secret {
		value = p.one(v)
	}
	return value, ""
}

// one returns the value of one key.
func (p *Plan) one(v json.RawMessage) []byte {
	if p.format() == Raw {
		return []byte(text(v))
	}
	return compact(v)
}

func (p *Plan) chosen(key string) bool {
	if len(p.Include) > 0 && !slices.ContainsFunc(p.Include, func(glob string) bool { return Match(glob, key) }) {
		return false
	}
	return !slices.ContainsFunc(p.Exclude, func(glob string) bool { return Match(glob, key) })
}

// Match reports whether a text fits a glob, in which "*" is any text.
func Match(glob, text string) bool {
	first, rest, more := strings.Cut(glob, "*")
	if !more {
		return glob == text
	}
	text, ok := strings.CutPrefix(text, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return strings.HasSuffix(text, last)
}
