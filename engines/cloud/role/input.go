package role

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// The legacy parameters, one of which makes a role by itself.
const (
	legacyPolicy = "policy"
	legacyARN    = "arn"
)

// newerFields replace the legacy parameters.
var newerFields = map[string]string{legacyPolicy: "policy_document", legacyARN: "policy_arns or role_arns"}

// The rules are all in check, none in the tags: a rejection lists everything at once.
type writeRoleIn struct {
	roleIn
	CredentialType string             `json:"credential_type" help:"What the role hands out: iam_user, assumed_role, federation_token or session_token. Required for a new role."`
	RoleARNs       engines.StringList `json:"role_arns" help:"Roles that may be assumed. Required for assumed_role, and for it only."`
	AssumeRoleARNs engines.StringList `json:"assume_role_arns" help:"Roles to assume one after the other before anything else, for accounts elsewhere. For iam_user and assumed_role only."`
	PolicyARNs     engines.StringList `json:"policy_arns" help:"Managed policies: of the users, or what temporary credentials are limited to."`
	PolicyDocument string             `json:"policy_document" form:"json" help:"A policy as JSON: of the users, or what temporary credentials are limited to. Texts in it may hold templates such as {{identity.entity.name}}."`
	IAMGroups      engines.StringList `json:"iam_groups" help:"Groups of the users, or whose policies temporary credentials are limited to as well."`
	IAMTags        engines.StringMap  `json:"iam_tags" help:"Tags of the users, as key=value."`
	SessionTags    engines.StringMap  `json:"session_tags" help:"Tags of the sessions of assumed_role, as key=value. Values may hold templates such as {{identity.entity.name}}."`
	SessionName    string             `json:"session_name" help:"Name of the sessions of assumed_role, whatever a request asks for. It may hold templates such as {{identity.entity.name}}."`
	ExternalID     string             `json:"external_id" help:"What the roles want to be told by those who assume them. For assumed_role only."`
	SourceIdentity string             `json:"source_identity" help:"Source identity of the sessions of assumed_role, which CloudTrail shows for all that comes of them. It may hold templates such as {{identity.entity.name}}."`
	MaxUsers       int                `json:"max_users" help:"How many users of the role there may be at once, on each cluster; 0 is without limit. For iam_user only."`
	DefaultSTSTTL  engines.Duration   `json:"default_sts_ttl" help:"Lifetime of temporary credentials if a request does not ask for one; 0 is an hour."`
	MaxSTSTTL      engines.Duration   `json:"max_sts_ttl" help:"Longest lifetime of temporary credentials; 0 is the mount's maximum."`
	UserPath       string             `json:"user_path" help:"Path of the users, / by default. For iam_user only."`
	BoundaryARN    string             `json:"permissions_boundary_arn" help:"Policy that bounds what the users may ever do. For iam_user only."`
	MFASerial      string             `json:"mfa_serial_number" help:"The device of the root credentials' user, for codes given with requests. For session_token only."`
	WaitUntilValid engines.Duration   `json:"wait_until_valid" help:"How long a request may wait until a new key works, at most a minute. For iam_user only."`
	Policy         string             `json:"policy" alias:"policy_document" form:"json" help:"Legacy, instead of all of the others: a policy as JSON."`
	ARN            string             `json:"arn" alias:"policy_arns,role_arns" form:"trim" help:"Legacy, instead of all of the others: the ARN of a policy or role."`
}

// roleField is one of the current fields of a request.
type roleField struct {
	name  string
	empty bool
	set   func()
}

func (in *writeRoleIn) fields(r *Role) []roleField {
	return []roleField{
		{"credential_type", in.CredentialType == "", func() {
			if in.CredentialType != "" {
				r.Types = []string{in.CredentialType}
			}
		}},
		{"role_arns", len(in.RoleARNs) == 0, func() { r.RoleARNs = once(in.RoleARNs) }},
		// The way to a role may lead through one twice.
		{"assume_role_arns", len(in.AssumeRoleARNs) == 0, func() { r.AssumeRoleARNs = in.AssumeRoleARNs }},
		{"policy_arns", len(in.PolicyARNs) == 0, func() { r.PolicyARNs = once(in.PolicyARNs) }},
		{"policy_document", in.PolicyDocument == "", func() { r.PolicyDocument = compact(in.PolicyDocument) }},
		{"iam_groups", len(in.IAMGroups) == 0, func() { r.IAMGroups = once(in.IAMGroups) }},
		{"iam_tags", len(in.IAMTags) == 0, func() { r.IAMTags = in.IAMTags }},
		{"session_tags", len(in.SessionTags) == 0, func() { r.SessionTags = in.SessionTags }},
		{"session_name", in.SessionName == "", func() { r.SessionName = in.SessionName }},
		{"external_id", in.ExternalID == "", func() { r.ExternalID = in.ExternalID }},
		{"source_identity", in.SourceIdentity == "", func() { r.SourceIdentity = in.SourceIdentity }},
		{"max_users", in.MaxUsers == 0, func() { r.MaxUsers = in.MaxUsers }},
		{"default_sts_ttl", in.DefaultSTSTTL == 0, func() { r.DefaultSTSTTL = time.Duration(in.DefaultSTSTTL).Truncate(time.Second) }},
		{"max_sts_ttl", in.MaxSTSTTL == 0, func() { r.MaxSTSTTL = time.Duration(in.MaxSTSTTL).Truncate(time.Second) }},
		{"user_path", in.UserPath == "", func() { r.UserPath = in.UserPath }},
		{"permissions_boundary_arn", in.BoundaryARN == "", func() { r.BoundaryARN = in.BoundaryARN }},
		{"mfa_serial_number", in.MFASerial == "", func() { r.MFASerial = in.MFASerial }},
		{"wait_until_valid", in.WaitUntilValid == 0, func() { r.WaitUntilValid = time.Duration(in.WaitUntilValid).Truncate(time.Second) }},
	}
}

// apply returns the role that a write makes of the old one, nil for a new role, or everything that is wrong with it.
func (in *writeRoleIn) apply(req *engines.Request, old *Role) (*Role, engines.Problems) {
	if in.Policy != "" || in.ARN != "" {
		return in.legacy()
	}
	r := new(Role)
	if old != nil {
		*r = *old
		r.InvalidData = ""
	}
	touched := false
	for _, f := range in.fields(r) {
		// Clients empty a field with null, too: it is not the same as leaving it out.
		if req.Given(f.name) || req.Null(f.name) {
			f.set()
			touched = true
		}
	}
	var p engines.Problems
	switch {
	case r.Legacy == "":
	case in.CredentialType != "":
		r.Legacy = ""
	case touched:
		p.Add("credential_type", "is required to change a role that was made with %q", r.Legacy)
	}
	for _, problem := range r.check() {
		if field, ok := strings.CutPrefix(problem, `field "`); ok && strings.Contains(problem, notForType) {
			if field, _, _ = strings.Cut(field, `"`); !req.Given(field) && !req.Null(field) {
				problem += ": the role has it from before, clear it with " + field + `=""`
			}
		}
		p = append(p, problem)
	}
	return r, p
}

// legacy returns the role that is made with a legacy parameter. It takes the place of whatever there was.
func (in *writeRoleIn) legacy() (*Role, engines.Problems) {
	var p engines.Problems
	if in.Policy != "" && in.ARN != "" {
		p.Add(legacyARN, "must not be given together with %q", legacyPolicy)
	}
	var r *Role
	for _, l := range []struct{ parameter, value string }{{legacyPolicy, in.Policy}, {legacyARN, in.ARN}} {
		if l.value == "" {
			continue
		}
		made, problem := legacyRole(l.parameter, l.value)
		if r = made; problem != "" {
			p.Add(l.parameter, "%s", problem)
			continue
		}
		for _, text := range r.check() {
			p = append(p, strings.Replace(text, newerFields[legacyPolicy], legacyPolicy, 1))
		}
	}
	current := new(Role)
	for _, f := range in.fields(current) {
		if !f.empty {
			p.Add(f.name, "must not be given together with the legacy \"policy\" or \"arn\"")
			f.set()
		}
	}
	if in.CredentialType != "" {
		p = append(p, current.check()...)
	}
	return r, p
}

// legacyRole returns the role that the value of a legacy parameter means, or what is wrong with the value.
func legacyRole(parameter, value string) (r *Role, problem string) {
	value = strings.TrimSpace(value)
	switch {
	case parameter == legacyPolicy && json.Valid([]byte(value)):
		return &Role{Legacy: parameter, Types: []string{IAMUser, FederationToken}, PolicyDocument: compact(value)}, ""
	case parameter == legacyPolicy:
		return nil, "must be JSON"
	case isARN(value, policyARNForm()):
		return &Role{Legacy: parameter, Types: []string{IAMUser}, PolicyARNs: engines.StringList{value}}, ""
	case isARN(value, roleARNForm()):
		return &Role{Legacy: parameter, Types: []string{AssumedRole}, RoleARNs: engines.StringList{value}}, ""
	}
	return nil, "must be the ARN of a policy or of a role"
}

// compact returns JSON without the blanks between its parts, and other texts as they are.
func compact(text string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return text
	}
	return b.String()
}

// once returns a list with each element where it came first.
func once(list engines.StringList) engines.StringList {
	var out engines.StringList
	seen := map[string]bool{}
	for _, element := range list {
		if !seen[element] {
			seen[element] = true
			out = append(out, element)
		}
	}
	return out
}
