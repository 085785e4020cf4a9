package role

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/username"
)

// minSession is how many characters the name of a session has at least.
const minSession = 2

// Wish is what a request for credentials says.
type Wish struct {
	Path        string // "creds" or "sts"
	RoleARN     string
	SessionName string
	TTL         time.Duration // 0: the role's
	MFACode     string
}

// Grant is what a wish gets of a role.
type Grant struct {
	Type        string
	RoleARN     string        // for assumed_role
	SessionName string        // for assumed_role; "": one has to be made
	TTL         time.Duration // whole seconds; 0 for iam_user, whose lease says it
	MFA         aws.MFA       // for session_token
	Warnings    []string
}

// Grant returns what a request gets, or an Error of KindInvalid with everything that is wrong with it. The role is one that
// filled returned. mountMax is the mount's longest lifetime, 0 for none.
func (r *Role) Grant(w Wish, mountMax time.Duration) (Grant, error) {
	kind, problem := r.kindFor(w.Path)
	if problem != "" {
		return Grant{}, engines.Invalid("%s", problem)
	}
	g := Grant{Type: kind}
	var p engines.Problems
	g.RoleARN = r.chooseRole(kind, w.RoleARN, &p)
	g.SessionName = r.nameSession(kind, w.SessionName, &g, &p)
	g.MFA = r.device(kind, w.MFACode, &p)
	switch {
	case kind != IAMUser:
		g.TTL = r.lifetime(kind, w.TTL, mountMax, &p)
	case w.TTL > 0:
		g.Warnings = append(g.Warnings, "ttl is for temporary credentials: config/lease says how long users last")
	}
	if p != nil {
		return Grant{}, p.Err()
	}
	return g, nil
}

// kindFor returns the type of credentials that a path gives. Both paths give what a role's credential_type says; roles made
// with a legacy parameter give users at creds and temporary credentials at sts.
func (r *Role) kindFor(path string) (kind, problem string) {
	if r.Legacy == "" {
		return r.Types[0], ""
	}
	at := slices.IndexFunc(r.Types, func(kind string) bool { return (kind == IAMUser) == (path == "creds") })
	switch {
	case at >= 0:
		return r.Types[at], ""
	case path == "creds":
		return "", "the role was made with the legacy \"" + r.Legacy + "\" and has no credentials of type iam_user: use sts/"
	}
	return "", "the role was made with the legacy \"" + r.Legacy + "\" and has no credentials of type assumed_role or federation_token: use creds/"
}

// chooseRole returns the role to assume: the one asked for, which must be allowed, or the only one there is.
func (r *Role) chooseRole(kind, asked string, p *engines.Problems) string {
	switch {
	case kind != AssumedRole && asked != "":
		p.Add("role_arn", "the role assumes none: it is of the credential_type %s", kind)
	case kind != AssumedRole:
	case asked == "" && len(r.RoleARNs) == 1:
		return r.RoleARNs[0]
	case asked == "":
		p.Add("role_arn", "is required: the role allows %d", len(r.RoleARNs))
	case !slices.Contains(r.RoleARNs, asked):
		p.Add("role_arn", "is not one that the role allows")
	}
	return asked
}

// nameSession returns the name of the session: the role's own, so that a caller cannot use another's name, else the requested
// one.
func (r *Role) nameSession(kind, asked string, g *Grant, p *engines.Problems) string {
	switch {
	case kind != AssumedRole:
		if asked != "" {
			g.Warnings = append(g.Warnings, "role_session_name is for credentials of assumed_role: it was ignored")
		}
		return ""
	case r.SessionName != "":
		if asked != "" {
			g.Warnings = append(g.Warnings, "role_session_name was ignored: the role has a session_name")
		}
		asked = r.SessionName
	case asked == "":
		return ""
	}
	name := username.Session(asked)
	if len(name) < minSession {
		p.Add("role_session_name", "must have at least %d characters", minSession)
	}
	return name
}

// device returns the code of the role's device. The provider wants one if and only if the role has a device.
func (r *Role) device(kind, code string, p *engines.Problems) aws.MFA {
	if kind != SessionToken || r.MFASerial == "" {
		if code != "" {
			p.Add("mfa_code", "the role has no mfa_serial_number")
		}
		return aws.MFA{}
	}
	if len(code) != 6 || strings.Trim(code, "0123456789") != "" {
		p.Add("mfa_code", "must be the 6 digits that the role's device shows")
	}
	return aws.MFA{Serial: r.MFASerial, Code: code}
}

// lifetime returns how long temporary credentials last: what is asked for, else the role's default, else an hour; cut to
// max_sts_ttl, else to the mount's maximum, and to what the provider gives.
func (r *Role) lifetime(kind string, asked, mountMax time.Duration, p *engines.Problems) time.Duration {
	ttl := min(cmp.Or(asked, r.DefaultSTSTTL, defaultSTS), r.longest(kind))
	if limit := cmp.Or(r.MaxSTSTTL, mountMax); limit > 0 {
		ttl = min(ttl, limit)
	}
	switch {
	case asked > 0 && asked < shortestSTS:
		p.Add("ttl", "must be at least %v: the provider gives nothing shorter", shortestSTS)
	case ttl < shortestSTS:
		p.Add("ttl", "the mount allows at most %v, and the provider gives at least %v", mountMax, shortestSTS)
	}
	return ttl.Truncate(time.Second)
}
