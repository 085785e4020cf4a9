package awstest

import (
	"crypto/subtle"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest/query"
)

// kind is what sort of credentials a caller has.
type kind int

const (
	ofUser kind = iota
	ofRole
	ofFederation
	ofSession // of a user, without a code of MFA
	ofSessionWithMFA
)

// principal is who signed a request.
type principal struct {
	account *Account
	kind    kind
	user    *user // for ofUser and ofSession…, else nil
	arn     string
	id      string // such as "AROA…:session"
	secret  string
	token   string
	may     bool // whatever it wants, as far as its kind may
}

// session is temporary credentials.
type session struct {
	principal
	expires time.Time
}

// principal returns who has a key, if the key is valid now.
func (s *Server) principal(key, token string, now time.Time) (*principal, *query.Refusal) {
	unknown := query.Refuse("InvalidClientTokenId", "The security token included in the request is invalid.")
	if issued := s.sessions[key]; issued != nil {
		gone := issued.user != nil && issued.account.users[fold(issued.user.name)] != issued.user
		if gone || subtle.ConstantTimeCompare([]byte(token), []byte(issued.token)) != 1 {
			return nil, unknown
		}
		if !now.Before(issued.expires) {
			return nil, query.Refuse("ExpiredToken", "The security token included in the request is expired")
		}
		return &issued.principal, nil
	}
	k := s.keys[key]
	if k == nil || !k.active || k.validAt.After(now) || token != "" {
		return nil, unknown
	}
	return &principal{
		account: k.user.account, user: k.user, arn: k.user.arn(), id: k.user.id, secret: k.secret, may: k.user.may(),
	}, nil
}

// may reports whether a user may do everything.
func (u *user) may() bool {
	if u.powerful || slices.Contains(u.attached, administrator) {
		return true
	}
	for name := range u.groups {
		if g := u.account.groups[name]; g != nil && slices.Contains(g.attached, administrator) {
			return true
		}
	}
	return false
}

// authorise says whether the caller may do what it asks for.
func (r *request) authorise(service string) *query.Refusal {
	p := r.caller
	denied := query.Refuse("AccessDenied", "User: %s is not authorized to perform: %s:%s", p.arn, service, r.action)
	switch {
	case r.action == "GetCallerIdentity":
		return nil
	case r.action == "GetSessionToken" || r.action == "GetFederationToken":
		if p.kind != ofUser {
			return query.Refuse("AccessDenied", "Cannot call %s with session credentials", r.action)
		}
		if r.action == "GetSessionToken" {
			return nil // which needs no permission
		}
	case p.kind == ofFederation, p.kind == ofSession && service == "iam":
		if service == "iam" {
			return query.Refuse("InvalidClientTokenId", "The security token included in the request is invalid")
		}
		return denied
	}
	if !p.may && r.action != "AssumeRole" { // which the role has a say in
		return denied
	}
	return nil
}

func getCallerIdentity(r *request) ([]query.Element, *query.Refusal) {
	return []query.Element{query.Text("Arn", r.caller.arn), query.Text("UserId", r.caller.id), query.Text("Account", r.caller.account.ID)}, nil
}

// issue makes temporary credentials and describes them.
func (r *request) issue(p principal, ttl time.Duration) query.Element {
	p.secret, p.token = newSecret(), letters("FwoGZXIvYXdzE", 20)+newSecret()+newSecret()+"=="
	key, expires := letters("ASIA", 16), r.now.Add(ttl).Truncate(time.Second)
	r.s.sessions[key] = &session{p, expires}
	return query.Group("Credentials", query.Text("AccessKeyId", key), query.Text("SecretAccessKey", p.secret), query.Text("SessionToken", p.token),
		query.When("Expiration", expires))
}

// duration returns the DurationSeconds of a request.
func (r *request) duration(otherwise time.Duration) time.Duration {
	if n, err := strconv.Atoi(r.get("DurationSeconds")); err == nil {
		return time.Duration(n) * time.Second
	}
	return otherwise
}

// sessionPolicies checks what limits a session, and returns how large it is in percent of the limit, and whether there is
// anything.
func (r *request) sessionPolicies() (percent int, limited bool, refused *query.Refusal) {
	policy, arns := r.get("Policy"), r.list("PolicyArns", ".arn")
	tags, refused := r.tags()
	if refused != nil {
		return 0, false, query.Refuse("ValidationError", "%s", refused.Message)
	}
	if len([]rune(policy)) > maxInline {
		return 0, false, query.Refuse("ValidationError", "The policy is longer than %d characters", maxInline)
	}
	if policy != "" && !wellFormed(policy) {
		return 0, false, query.Refuse("MalformedPolicyDocument", "The policy is not in the valid JSON format.")
	}
	size := solid(policy)
	for _, arn := range arns {
		size += len(arn)
	}
	for k, v := range tags {
		size += len(k) + len(v)
	}
	percent = size * 100 / max(1, r.s.packed)
	if percent > 100 {
		return 0, false, query.Refuse("PackedPolicyTooLarge", "Packed policy consumes %d%% of allotted space, please use smaller policy.", percent)
	}
	return percent, policy != "" || len(arns) > 0, nil
}

func (r *request) role(arn string) (*Account, *Role) {
	parts := strings.SplitN(arn, ":", 6)
	if len(parts) != 6 {
		return nil, nil
	}
	a := r.s.accounts[parts[4]]
	if a == nil {
		return nil, nil
	}
	return a, a.roles[arn]
}

func assumeRole(r *request) ([]query.Element, *query.Refusal) {
	arn := r.get("RoleArn")
	a, role := r.role(arn)
	if role == nil || role.ExternalID != "" && role.ExternalID != r.get("ExternalId") || !role.trusts(r.caller) {
		return nil, query.Refuse("AccessDenied", "User: %s is not authorized to perform: sts:AssumeRole on resource: %s", r.caller.arn, arn)
	}
	percent, limited, refused := r.sessionPolicies()
	if refused != nil {
		return nil, refused
	}
	longest := role.MaxTTL
	if longest == 0 {
		longest = time.Hour
	}
	ttl := r.duration(time.Hour)
	switch {
	case r.caller.kind == ofRole && ttl > time.Hour:
		return nil, query.Refuse("ValidationError", "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining")
	case ttl > longest:
		return nil, query.Refuse("ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
	}
	name := r.get("RoleSessionName")
	as := principal{
		account: a, kind: ofRole, may: !role.Powerless && !limited, id: "AROA" + strings.ToUpper(role.Name) + ":" + name,
		arn: "arn:aws:sts::" + a.ID + ":assumed-role/" + role.Name[strings.LastIndex(role.Name, "/")+1:] + "/" + name,
	}
	return []query.Element{
		r.issue(as, ttl),
		query.Group("AssumedRoleUser", query.Text("AssumedRoleId", as.id), query.Text("Arn", as.arn)),
		query.Text("PackedPolicySize", strconv.Itoa(percent)),
	}, nil
}

func assumeRoleWithWebIdentity(r *request) ([]query.Element, *query.Refusal) {
	a, role := r.role(r.get("RoleArn"))
	if role == nil || role.WebIdentity == nil {
		return nil, query.Refuse("AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity")
	}
	if code, reason := role.WebIdentity(r.get("WebIdentityToken")); code != "" {
		return nil, query.Refuse(code, "%s", reason)
	}
	percent, limited, refused := r.sessionPolicies()
	if refused != nil {
		return nil, refused
	}
	name := r.get("RoleSessionName")
	as := principal{
		account: a, kind: ofRole, may: !role.Powerless && !limited, id: "AROA" + strings.ToUpper(role.Name) + ":" + name,
		arn: "arn:aws:sts::" + a.ID + ":assumed-role/" + role.Name[strings.LastIndex(role.Name, "/")+1:] + "/" + name,
	}
	return []query.Element{
		r.issue(as, r.duration(time.Hour)),
		query.Group("AssumedRoleUser", query.Text("AssumedRoleId", as.id), query.Text("Arn", as.arn)),
		query.Text("PackedPolicySize", strconv.Itoa(percent)),
	}, nil
}

// trusts reports whether a role may be assumed by a caller. A user is trusted by its ARN, a session of a role by the ARN of
// its role.
func (role *Role) trusts(p *principal) bool {
	if role.Trusted == nil {
		return p.may
	}
	return slices.ContainsFunc(role.Trusted, func(arn string) bool {
		_, name, isRole := strings.Cut(arn, ":role/")
		if isRole {
			return p.kind == ofRole && strings.HasPrefix(p.arn, "arn:aws:sts::"+p.account.ID+":assumed-role/"+name+"/") &&
				strings.Contains(arn, "::"+p.account.ID+":")
		}
		return arn == p.arn
	})
}

func getFederationToken(r *request) ([]query.Element, *query.Refusal) {
	percent, _, refused := r.sessionPolicies()
	if refused != nil {
		return nil, refused
	}
	name, account := r.get("Name"), r.account()
	as := principal{
		account: account, kind: ofFederation, id: account.ID + ":" + name,
		arn: "arn:aws:sts::" + account.ID + ":federated-user/" + name,
	}
	return []query.Element{
		r.issue(as, r.duration(12*time.Hour)),
		query.Group("FederatedUser", query.Text("FederatedUserId", as.id), query.Text("Arn", as.arn)),
		query.Text("PackedPolicySize", strconv.Itoa(percent)),
	}, nil
}

func getSessionToken(r *request) ([]query.Element, *query.Refusal) {
	as := *r.caller
	as.kind = ofSession
	if serial, code := r.get("SerialNumber"), r.get("TokenCode"); serial != "" || code != "" {
		if serial == "" || r.caller.user.mfa[serial] != code {
			return nil, query.Refuse("AccessDenied", "MultiFactorAuthentication failed with invalid MFA one time pass code.")
		}
		as.kind = ofSessionWithMFA
	}
	return []query.Element{r.issue(as, r.duration(12*time.Hour))}, nil
}
