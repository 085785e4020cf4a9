package role

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/storage"
)

const RejectedPrefix storage.Key = "refused/"

// LastRejection is the stored form of the last rejected login of a role, as JSON, below refused/ in the ClusterStorage.
type LastRejection struct {
	Format  int              `json:"format"` // 1
	At      time.Time        `json:"at"`
	Reason  assertion.Reason `json:"reason"` // or "role"
	Detail  string           `json:"detail"`
	Address string           `json:"address"` // of the browser
	// User is who the identity provider said it was, nil if its response was not accepted.
	User *Identity `json:"user,omitempty"`
	// Vouched tells what the identity provider signed from what any client can bring about.
	Vouched bool `json:"vouched,omitempty"`
}

func (r *LastRejection) RecordFormat() *int { return &r.Format }

// rejectionTTL is how long a rejection can be explained.
const rejectionTTL = 24 * time.Hour

type explainIn struct {
	roleIn
	Subject    string             `json:"subject" max:"1024" help:"Subject of a user; without subject and attributes, the last login of the role that was rejected is explained."`
	Contexts   engines.StringList `json:"authn_context_class_refs" max:"16" help:"How the user has signed in, as the identity provider says it."`
	Attributes json.RawMessage    `json:"attributes" max:"262144" help:"Attributes of a user: names, and for each a value or a list of values, as the identity provider sends them."`
}

// maxGivenValues is above what one response can hold.
const maxGivenValues = 1000

// user returns the given user, nil if none is given.
func (in *explainIn) user() (*Identity, error) {
	attributes, err := givenAttributes(in.Attributes)
	if err != nil {
		return nil, engines.Invalid("field \"attributes\": %v", err)
	}
	n := 0
	for _, values := range attributes {
		n += len(values)
	}
	switch {
	case n > maxGivenValues:
		return nil, engines.Invalid("field \"attributes\": has more than %d values", maxGivenValues)
	case in.Subject == "" && len(attributes) == 0 && len(in.Contexts) == 0:
		return nil, nil
	}
	return &Identity{Subject: in.Subject, Attributes: attributes, Contexts: in.Contexts}, nil
}

func explain(ctx context.Context, req *engines.Request, in *explainIn) (*engines.Response, error) {
	name, err := normalName(in.Name)
	if err != nil {
		return nil, err
	}
	user, err := in.user()
	if err != nil {
		return nil, err
	}
	r, err := Get(ctx, req.Mount.Storage, name)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, engines.NotFound("no role has this name")
	}
	if user != nil {
		return &engines.Response{Data: r.explain(user)}, nil
	}
	last := new(LastRejection)
	switch found, err := engines.GetRecord(ctx, req.Mount.ClusterStorage, RejectedPrefix+storage.Key(name), last); {
	case err != nil:
		return nil, err
	case !found || time.Since(last.At) > rejectionTTL:
		return nil, engines.NotFound("no login of this role was rejected in the last 24 hours: give a subject and attributes")
	}
	data := r.explain(last.User)
	data["refused"] = map[string]any{"at": last.At, "reason": last.Reason, "detail": last.Detail, "address": last.Address}
	return &engines.Response{Data: data}, nil
}

// explain returns what the role makes of a user as it is now. A nil user is one whom the identity provider does not vouch for: there is
// nothing to hold against the bounds.
func (r *Role) explain(user *Identity) map[string]any {
	data := map[string]any{
		"admitted": false, "subject": "", "attributes": map[string][]string{},
		"groups": []string{}, "policies": []string{}, "checks": []check{},
	}
	if user == nil {
		return data
	}
	data["subject"] = user.Subject
	if user.Attributes != nil {
		data["attributes"] = user.Attributes
	}
	data["groups"] = append([]string{}, r.Groups(*user)...)
	checks := r.checks(*user)
	for i := range checks {
		checks[i].Hint = checks[i].hint(*user)
	}
	data["checks"] = checks
	if !slices.ContainsFunc(checks, func(c check) bool { return !c.Passed }) {
		data["admitted"], data["policies"] = true, r.policies()
	}
	return data
}

// policies returns those that a token of the role has before its groups and entity add theirs.
func (r *Role) policies() []string {
	policies := append([]string{}, r.Token.TokenPolicies...)
	if !r.Token.TokenNoDefaultPolicy && !slices.Contains(policies, "default") {
		policies = append(policies, "default")
	}
	slices.Sort(policies)
	return policies
}
