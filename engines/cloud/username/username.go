// Package username makes the names of users and sessions at the provider, by the template of the root configuration.
package username

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/nametemplate"
)

// What names are for. It is the .Type of a template.
const (
	IAM = "IAM" // users, and sessions of roles without a configured or requested name
	STS = "STS" // federated users
)

// maxNameChars are the provider's limits.
var maxNameChars = map[string]int{IAM: 64, STS: 32}

// DefaultTemplate makes "vault-<unix time>-<20 random>" for STS, and for IAM the same with the display name and the
// role behind "vault-": policies of existing installations allow "user/vault-*".
const DefaultTemplate = `{{ if eq .Type "STS" }}` +
	`{{ printf "vault-%s-%s" unix_time (random 20) | truncate 32 }}` +
	`{{ else }}` +
	`{{ printf "vault-%s-%s-%s" (printf "%s-%s" .DisplayName .PolicyName | truncate 42) unix_time (random 20) | truncate 64 }}` +
	`{{ end }}`

// nameInput is what a template is about.
type nameInput struct {
	Type        string // IAM or STS
	DisplayName string // of the caller
	PolicyName  string // the role's name
}

var nameFields = []string{"Type", "DisplayName", "PolicyName"}

// New makes a name by a template, "" being the default, that the provider accepts: characters that it does not know become "_". A name that is too long, or
// none at all, is the template's fault and an Error of KindFailed.
func New(template, kind, displayName, roleName string) (string, error) {
	in := nameInput{Type: kind, DisplayName: displayName, PolicyName: roleName}
	name, err := render(template, in, time.Now())
	if err != nil {
		return "", badTemplate(": "+nametemplate.Text(err), err)
	}
	if problem := checkName(kind, name); problem != "" {
		return "", badTemplate(" "+problem, nil)
	}
	return name, nil
}

func badTemplate(why string, err error) error {
	return &engines.Error{Kind: engines.KindFailed, Detail: "username_template of config/root" + why, Err: err}
}

// checkName returns why the provider would reject a name, "" if it would not.
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

// render executes a template, "" being the default.
func render(text string, in nameInput, now time.Time) (string, error) {
	t, err := nametemplate.Parse(cmp.Or(text, DefaultTemplate), nameFields, nametemplate.Fresh(now))
	if err != nil {
		return "", err
	}
	name, err := t.Execute(in)
	return strings.Map(nameChar, strings.TrimSpace(name)), err
}

// Session returns a text as the provider takes it: _ for what it does not take, and what is too long cut off.
func Session(text string) string {
	name := strings.Map(nameChar, text)
	return name[:min(len(name), maxNameChars[IAM])]
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

// Check returns what keeps a template from working at all, or what should be known about it.
func Check(text string) (problem string, warnings []string) {
	now := time.Now()
	for _, kind := range []string{IAM, STS} {
		in := nameInput{Type: kind, DisplayName: "token", PolicyName: "role"}
		name, err := render(text, in, now)
		if err != nil {
			return nametemplate.Text(err), nil
		}
		if problem := checkName(kind, name); problem != "" {
			warnings = append(warnings, problem+": the provider will reject such credentials")
			continue
		}
		if again, err := render(text, in, now.Add(time.Hour)); err == nil && again == name {
			warnings = append(warnings, "makes the same name again for "+kind+": a user that exists cannot be made twice; add (random 20)")
		}
		in.DisplayName, in.PolicyName = strings.Repeat("d", 128), strings.Repeat("r", 128)
		long, err := render(text, in, now)
		if err == nil && checkName(kind, long) != "" {
			warnings = append(warnings, fmt.Sprintf("makes names of more than %d characters for %s when the display name or the role's name is long: the provider will reject such credentials: shorten it with truncate", maxNameChars[kind], kind))
		}
	}
	return "", warnings
}
