package cloud

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
)

// minSession is how many characters the name of a session has at least.
const minSession = 2

// wish is what a request for credentials says.
type wish struct {
	Path        string // "creds" or "sts"
	RoleARN     string
	SessionName string
	TTL         time.Duration // 0: the role's
	MFACode     string
}

// grant is what a wish gets of a role.
type grant struct {
	Type        string
	RoleARN     string        // for assumed_role
	SessionName string        // for assumed_role; "": one has to be made
	TTL         time.Duration // whole seconds; 0 for iam_user, whose lease says it
	MFA         aws.MFA       // for session_token
	Warnings    []string
}

// grant returns what a request gets, or an Error of KindInvalid with everything that is wrong with it. The role is one that
// filled returned. mountMax is the mount's longest lifetime, 0 for none.
func (r *role) grant(w wish, mountMax time.Duration) (grant, error) {
	kind, problem := r.kindFor(w.Path)
	if problem != "" {
		return grant{}, engines.Invalid("%s", problem)
	}
	g := grant{Type: kind}
	var p problems
	g.RoleARN = r.chooseRole(kind, w.RoleARN, &p)
	g.SessionName = r.nameSession(kind, w.SessionName, &g, &p)
	g.MFA = r.device(kind, w.MFACode, &p)
	switch {
	case kind != iamUser:
		g.TTL = r.lifetime(kind, w.TTL, mountMax, &p)
	case w.TTL > 0:
		g.Warnings = append(g.Warnings, "ttl is for temporary credentials: config/lease says how long users last")
	}
	if p != nil {
		return grant{}, engines.Invalid("%s", strings.Join(p, "; "))
	}
	return g, nil
}

// kindFor returns the type of credentials that a path gives. Both paths give what a role's credential_type says; roles made
// with a legacy parameter give users at creds and temporary credentials at sts.
func (r *role) kindFor(path string) (kind, problem string) {
	if r.Legacy == "" {
		return r.Types[0], ""
	}
	at := slices.IndexFunc(r.Types, func(kind string) bool { return (kind == iamUser) == (path == "creds") })
	switch {
	case at >= 0:
		return r.Types[at], ""
	case path == "creds":
		return "", "the role was made with the legacy \"" + r.Legacy + "\" and has no credentials of type iam_user: use sts/"
	}
	return "", "the role was made with the legacy \"" + r.Legacy + "\" and has no credentials of type assumed_role or federation_token: use creds/"
}

// chooseRole returns the role to assume: the one asked for, which must be allowed, or the only one there is.
func (r *role) chooseRole(kind, asked string, p *problems) string {
	switch {
	case kind != assumedRole && asked != "":
		p.add("role_arn", "the role assumes none: it is of the credential_type %s", kind)
	case kind != assumedRole:
	case asked == "" && len(r.RoleARNs) == 1:
		return r.RoleARNs[0]
	case asked == "":
		p.add("role_arn", "is required: the role allows %d", len(r.RoleARNs))
	case !slices.Contains(r.RoleARNs, asked):
		p.add("role_arn", "is not one that the role allows")
	}
	return asked
}

// nameSession returns the name of the session: the role's own, so that a caller cannot use another's name, else the requested
// one.
func (r *role) nameSession(kind, asked string, g *grant, p *problems) string {
	switch {
	case kind != assumedRole:
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
	name := sessionName(asked)
	if len(name) < minSession {
		p.add("role_session_name", "must have at least %d characters", minSession)
	}
	return name
}

// sessionName returns a text as the provider takes it: _ for what it does not take, and what is too long cut off.
func sessionName(text string) string {
	name := strings.Map(nameChar, text)
	return name[:min(len(name), maxNameChars[iamName])]
}

// device returns the code of the role's device. The provider wants one if and only if the role has a device.
func (r *role) device(kind, code string, p *problems) aws.MFA {
	if kind != sessionToken || r.MFASerial == "" {
		if code != "" {
			p.add("mfa_code", "the role has no mfa_serial_number")
		}
		return aws.MFA{}
	}
	if len(code) != 6 || strings.Trim(code, "0123456789") != "" {
		p.add("mfa_code", "must be the 6 digits that the role's device shows")
	}
	return aws.MFA{Serial: r.MFASerial, Code: code}
}

// lifetime returns how long temporary credentials last: what is asked for, else the role's default, else an hour; cut to
// max_sts_ttl, else to the mount's maximum, and to what the provider gives.
func (r *role) lifetime(kind string, asked, mountMax time.Duration, p *problems) time.Duration {
	ttl := min(cmp.Or(asked, r.DefaultSTSTTL, defaultSTS), r.longest(kind))
	if limit := cmp.Or(r.MaxSTSTTL, mountMax); limit > 0 {
		ttl = min(ttl, limit)
	}
	switch {
	case asked > 0 && asked < shortestSTS:
		p.add("ttl", "must be at least %v: the provider gives nothing shorter", shortestSTS)
	case ttl < shortestSTS:
		p.add("ttl", "the mount allows at most %v, and the provider gives at least %v", mountMax, shortestSTS)
	}
	return ttl.Truncate(time.Second)
}
