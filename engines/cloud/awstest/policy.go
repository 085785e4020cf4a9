package awstest

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/coffer-project/coffer/engines/cloud/awstest/query"
)

// administrator is the policy that allows everything.
const administrator = "arn:aws:iam::aws:policy/AdministratorAccess"

// vendorPolicies are managed policies that every account has.
var vendorPolicies = []string{
	administrator,
	"arn:aws:iam::aws:policy/ReadOnlyAccess",
	"arn:aws:iam::aws:policy/AmazonEC2ReadOnlyAccess",
	"arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess",
}

func (a *Account) hasPolicy(arn string) bool {
	return a.policies[arn] || slices.Contains(vendorPolicies, arn)
}

// wellFormed reports whether a document is a policy of identities: JSON with statements that each have an effect, actions
// and resources, and no principal.
func wellFormed(document string) bool {
	var p struct {
		Version   string
		ID        string `json:"Id"`
		Statement json.RawMessage
	}
	d := json.NewDecoder(strings.NewReader(document))
	d.DisallowUnknownFields()
	if d.Decode(&p) != nil || d.More() || (p.Version != "" && p.Version != "2012-10-17" && p.Version != "2008-10-17") {
		return false
	}
	var statements []map[string]json.RawMessage
	if json.Unmarshal(p.Statement, &statements) != nil {
		var one map[string]json.RawMessage
		if json.Unmarshal(p.Statement, &one) != nil {
			return false
		}
		statements = append(statements, one)
	}
	for _, s := range statements {
		effect := string(s["Effect"])
		if effect != `"Allow"` && effect != `"Deny"` {
			return false
		}
		for _, pair := range [][2]string{{"Action", "NotAction"}, {"Resource", "NotResource"}} {
			if (s[pair[0]] == nil) == (s[pair[1]] == nil) {
				return false
			}
		}
		for name := range s {
			if !slices.Contains([]string{"Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"}, name) {
				return false
			}
		}
	}
	return len(statements) > 0
}

// solid counts the characters that are not white space.
func solid(document string) (n int) {
	for _, c := range document {
		if !unicode.IsSpace(c) {
			n++
		}
	}
	return n
}

// escaped is how documents are answered.
func escaped(document string) string {
	return strings.ReplaceAll(url.QueryEscape(document), "+", "%20")
}

func attachUserPolicy(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	arn := r.get("PolicyArn")
	switch {
	case !strings.HasPrefix(arn, "arn:"):
		return nil, query.Refuse("InvalidInput", "ARN %s is not valid.", arn)
	case !u.account.hasPolicy(arn):
		return nil, query.Refuse("NoSuchEntity", "Policy %s does not exist or is not attachable.", arn)
	case slices.Contains(u.attached, arn):
		return nil, nil
	case len(u.attached) >= maxAttached:
		return nil, query.Refuse("LimitExceeded", "Cannot exceed quota for PoliciesPerUser: %d", maxAttached)
	}
	u.attached = append(u.attached, arn)
	return nil, nil
}

func detachUserPolicy(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	rest, ok := strip(u.attached, r.get("PolicyArn"))
	if !ok {
		return nil, query.Refuse("NoSuchEntity", "Policy %s was not found.", r.get("PolicyArn"))
	}
	u.attached = rest
	return nil, nil
}

func attachedRows(arns []string) []query.Row {
	var rows []query.Row
	for _, arn := range arns {
		rows = append(rows, query.Row{Key: arn, Element: query.Group("", query.Text("PolicyName", arn[strings.LastIndex(arn, "/")+1:]), query.Text("PolicyArn", arn))})
	}
	return rows
}

func nameRows(documents map[string]string) []query.Row {
	var rows []query.Row
	for name := range documents {
		rows = append(rows, query.Row{Key: name, Element: query.Text("", name)})
	}
	return rows
}

func listAttachedUserPolicies(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	return r.page("AttachedPolicies", attachedRows(u.attached))
}

func putUserPolicy(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	document := r.get("PolicyDocument")
	if !wellFormed(document) {
		return nil, query.Refuse("MalformedPolicyDocument", "Syntax errors in policy.")
	}
	size := solid(document)
	for name, other := range u.inline {
		if name != r.get("PolicyName") {
			size += solid(other)
		}
	}
	if size > maxInline {
		return nil, query.Refuse("LimitExceeded", "Maximum policy size of %d bytes exceeded for user %s", maxInline, u.name)
	}
	u.inline[r.get("PolicyName")] = document
	return nil, nil
}

func getUserPolicy(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	document, ok := u.inline[r.get("PolicyName")]
	if !ok {
		return nil, query.Refuse("NoSuchEntity", "The user policy with name %s cannot be found.", r.get("PolicyName"))
	}
	return []query.Element{query.Text("UserName", u.name), query.Text("PolicyName", r.get("PolicyName")), query.Text("PolicyDocument", escaped(document))}, nil
}

func deleteUserPolicy(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	name := r.get("PolicyName")
	if _, ok := u.inline[name]; !ok {
		return nil, query.Refuse("NoSuchEntity", "The user policy with name %s cannot be found.", name)
	}
	delete(u.inline, name)
	return nil, nil
}

func listUserPolicies(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	return r.page("PolicyNames", nameRows(u.inline))
}

// group returns the group that a request names.
func (r *request) group() (*users, *query.Refusal) {
	name := r.get("GroupName")
	g := r.account().groups[fold(name)]
	if g == nil || g.name != name {
		return nil, query.Refuse("NoSuchEntity", "The group with name %s cannot be found.", name)
	}
	return g, nil
}

func addUserToGroup(r *request) ([]query.Element, *query.Refusal) {
	g, refused := r.group()
	if refused != nil {
		return nil, refused
	}
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	if !u.groups[fold(g.name)] && len(u.groups) >= maxGroups {
		return nil, query.Refuse("LimitExceeded", "Cannot exceed quota for GroupsPerUser: %d", maxGroups)
	}
	u.groups[fold(g.name)] = true
	return nil, nil
}

func removeUserFromGroup(r *request) ([]query.Element, *query.Refusal) {
	g, refused := r.group()
	if refused != nil {
		return nil, refused
	}
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	if !u.groups[fold(g.name)] {
		return nil, query.Refuse("NoSuchEntity", "User %s is not in group %s.", u.name, g.name)
	}
	delete(u.groups, fold(g.name))
	return nil, nil
}

func listGroupsForUser(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	var rows []query.Row
	for name := range u.groups {
		g := u.account.groups[name]
		rows = append(rows, query.Row{Key: name, Element: query.Group("", query.Text("Path", "/"), query.Text("GroupName", g.name), query.Text("GroupId", g.id),
			query.Text("Arn", g.arn), query.When("CreateDate", u.created))})
	}
	return r.page("Groups", rows)
}

func listGroupPolicies(r *request) ([]query.Element, *query.Refusal) {
	g, refused := r.group()
	if refused != nil {
		return nil, refused
	}
	return r.page("PolicyNames", nameRows(g.inline))
}

func getGroupPolicy(r *request) ([]query.Element, *query.Refusal) {
	g, refused := r.group()
	if refused != nil {
		return nil, refused
	}
	document, ok := g.inline[r.get("PolicyName")]
	if !ok {
		return nil, query.Refuse("NoSuchEntity", "The group policy with name %s cannot be found.", r.get("PolicyName"))
	}
	return []query.Element{query.Text("GroupName", g.name), query.Text("PolicyName", r.get("PolicyName")), query.Text("PolicyDocument", escaped(document))}, nil
}

func listAttachedGroupPolicies(r *request) ([]query.Element, *query.Refusal) {
	g, refused := r.group()
	if refused != nil {
		return nil, refused
	}
	return r.page("AttachedPolicies", attachedRows(g.attached))
}
