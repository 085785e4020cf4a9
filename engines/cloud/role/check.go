package role

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines"
)

// What the provider takes at most, and what we do.
const (
	MaxDocumentChars   = 2048     // of the policy of a user or session, which is stored without white space
	maxDocumentBytes   = 64 << 10 // of the text with its templates
	maxUserPolicies    = 20       // managed ones; 10 unless the account's quota was raised
	MaxSessionPolicies = 10
	maxGroups          = 10 // of a user
	MaxTags            = 50
	maxPathBytes       = 512
	maxRoleARNs        = 256
	maxAssumeRoleARNs  = 5
	maxSessionName     = 1024 // the template's bytes
	maxWait            = time.Minute

	minSourceIdentity = 2
	maxSourceIdentity = 64

	shortestSTS = 15 * time.Minute
	longestRole = 12 * time.Hour
	longestUser = 36 * time.Hour // of federation_token and session_token
	// longestChained is what sessions of roles get that were assumed with the credentials of another role.
	longestChained = time.Hour
	defaultSTS     = time.Hour
)

var (
	roleARNForm   = engines.Pattern(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/([!-~]+/)?[\w+=,.@-]{1,64}$`)
	policyARNForm = engines.Pattern(`^arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/([!-~]+/)?[\w+=,.@-]{1,128}$`)

	groupNameForm  = engines.Pattern(`^[\w+=,.@-]{1,128}$`)
	userPathForm   = engines.Pattern(`^/([!-~]+/)?$`)
	externalIDForm = engines.Pattern(`^[\w+=,.@:/-]*$`)
	sourceForm     = engines.Pattern(`^[\w+=,.@-]*$`)
	mfaSerialForm  = engines.Pattern(`^[\w+=/:,.@-]{9,256}$`)
)

const (
	maxTagKey     = 128 // characters
	maxTagValue   = 256
	minExternalID = 2
	maxExternalID = 1224
	maxARNBytes   = 2048
	maxNamed      = 10 // elements that one message names
)

// IssueTag is the tag, with a random value, that tells a user made here from another one of the same name.
const IssueTag = "coffer-credential"

// IsRoleARN reports whether a text is the ARN of a role.
func IsRoleARN(text string) bool { return isARN(text, roleARNForm()) }

// IsExternalID reports whether a text can be an external id.
func IsExternalID(text string) bool {
	return len(text) >= minExternalID && len(text) <= maxExternalID && externalIDForm().MatchString(text)
}

func isARN(text string, kind *regexp.Regexp) bool {
	return len(text) <= maxARNBytes && kind.MatchString(text)
}

// check returns everything that is wrong with the role. It repeats no values.
func (r *Role) check() engines.Problems {
	var p engines.Problems
	known := len(r.Types) > 0
	for _, kind := range r.Types {
		known = known && slices.Contains(credentialTypes, kind)
	}
	switch {
	case len(r.Types) == 0:
		p.Add("credential_type", "is required: one of %s", quoted(credentialTypes))
	case !known:
		p.Add("credential_type", "must be one of %s", quoted(credentialTypes))
	}
	r.checkValues(&p)
	if known {
		r.checkOnlyFor(&p)
		r.checkRequired(&p)
		r.checkTTLs(&p)
	}
	return p
}

func quoted(names []string) string { return `"` + strings.Join(names, `", "`) + `"` }

// checkValues checks what holds for fields whatever the type.
func (r *Role) checkValues(p *engines.Problems) {
	checkARNs(p, "role_arns", r.RoleARNs, roleARNForm(), "a role, such as \"arn:aws:iam::123456789012:role/name\"", maxRoleARNs)
	checkARNs(p, "assume_role_arns", r.AssumeRoleARNs, roleARNForm(), "a role, such as \"arn:aws:iam::123456789012:role/name\"", maxAssumeRoleARNs)
	most := maxUserPolicies
	if len(r.Types) > 0 && !r.has(IAMUser) {
		most = MaxSessionPolicies
	}
	checkARNs(p, "policy_arns", r.PolicyARNs, policyARNForm(), "a policy, such as \"arn:aws:iam::aws:policy/name\"", most)
	if r.PolicyDocument != "" {
		if err := checkDocument(r.PolicyDocument); err != nil {
			p.Add("policy_document", "%v", err)
		}
	}
	if len(r.IAMGroups) > maxGroups {
		p.Add("iam_groups", "has more than %d groups", maxGroups)
	}
	if slices.ContainsFunc(r.IAMGroups, func(name string) bool { return !groupNameForm().MatchString(name) }) {
		p.Add("iam_groups", "must hold names of 1 to 128 letters, digits and +=,.@_-")
	}
	checkTags(p, "iam_tags", r.IAMTags)
	for key := range r.IAMTags {
		if strings.EqualFold(key, IssueTag) {
			p.Add("iam_tags", "must not hold %q, by which users that are made here are known", IssueTag)
		}
	}
	checkSessionTags(p, r.SessionTags)
	checkSessionName(p, r.SessionName)
	if literal, err := literalOf(r.SourceIdentity); err != nil || len(r.SourceIdentity) > maxSessionName {
		p.Add("source_identity", "must be at most %d bytes, and \"{{\" be followed by a name such as identity.entity.name and \"}}\"", maxSessionName)
	} else if literal != r.SourceIdentity && !sourceForm().MatchString(literal) || literal == r.SourceIdentity && literal != "" && !isSourceIdentity(literal) {
		p.Add("source_identity", badSourceIdentity)
	}
	if r.MaxUsers < 0 {
		p.Add("max_users", "must not be negative")
	}
	if r.ExternalID != "" && !IsExternalID(r.ExternalID) {
		p.Add("external_id", "must be %d to %d letters, digits and +=,.@:/_-", minExternalID, maxExternalID)
	}
	if r.MaxSTSTTL > 0 && r.DefaultSTSTTL > r.MaxSTSTTL {
		p.Add("default_sts_ttl", "must not be greater than max_sts_ttl")
	}
	if r.UserPath != "" && (len(r.UserPath) > maxPathBytes || !userPathForm().MatchString(r.UserPath)) {
		p.Add("user_path", "must begin and end with \"/\" and hold at most %d printable ASCII characters without blanks", maxPathBytes)
	}
	if r.BoundaryARN != "" && !isARN(r.BoundaryARN, policyARNForm()) {
		p.Add("permissions_boundary_arn", "must be the ARN of a policy, such as \"arn:aws:iam::aws:policy/name\"")
	}
	if r.MFASerial != "" && !mfaSerialForm().MatchString(r.MFASerial) {
		p.Add("mfa_serial_number", "must be the serial number or ARN of a device: 9 to 256 letters, digits and +=/:,.@_-")
	}
	if r.WaitUntilValid > maxWait {
		p.Add("wait_until_valid", "must not be longer than %v", maxWait)
	}
}

// checkARNs names the first elements that are wrong.
func checkARNs(p *engines.Problems, field string, arns []string, kind *regexp.Regexp, what string, most int) {
	if len(arns) > most {
		p.Add(field, "has more than %d elements", most)
	}
	var wrong []string
	for i, arn := range arns {
		if !isARN(arn, kind) && len(wrong) < maxNamed {
			wrong = append(wrong, strconv.Itoa(i+1))
		}
	}
	if wrong != nil {
		p.Add(field, "must hold the ARN of %s; look at the elements %s", what, strings.Join(wrong, ", "))
	}
}

// checkTags checks what the provider takes as tags.
func checkTags(p *engines.Problems, field string, tags map[string]string) {
	if len(tags) > MaxTags {
		p.Add(field, "has more than %d tags", MaxTags)
	}
	folded := map[string]bool{}
	badKey, badValue := false, false
	for key, value := range tags {
		lower := strings.ToLower(key)
		folded[lower] = true
		badKey = badKey || key == "" || !isTagText(key, maxTagKey) || strings.HasPrefix(lower, "aws:")
		badValue = badValue || !isTagText(value, maxTagValue)
	}
	if badKey {
		p.Add(field, "each key must be 1 to 128 letters, digits, blanks and _.:/=+-@, and must not begin with \"aws:\"")
	}
	if badValue {
		p.Add(field, "each value must be at most 256 letters, digits, blanks and _.:/=+-@")
	}
	if len(folded) < len(tags) {
		p.Add(field, "has keys that differ in case only, which are one to the provider")
	}
}

// isTagText reports whether the provider takes a text in tags. A regular expression of so many letters so often would weigh
// megabytes in every process.
func isTagText(text string, most int) bool {
	bad := func(c rune) bool {
		return !unicode.In(c, unicode.L, unicode.Z, unicode.N) && !strings.ContainsRune("_.:/=+-@", c)
	}
	return utf8.RuneCountInString(text) <= most && !strings.ContainsFunc(text, bad)
}

// checkSessionTags is checkTags for values that may hold templates.
func checkSessionTags(p *engines.Problems, tags map[string]string) {
	literal := make(map[string]string, len(tags))
	var wrong error
	for key, value := range tags {
		text, err := literalOf(value)
		if err != nil {
			wrong = err
		}
		literal[key] = text
	}
	if wrong != nil {
		p.Add("session_tags", "a value is wrong: %v", wrong)
	}
	checkTags(p, "session_tags", literal)
}

func checkSessionName(p *engines.Problems, name string) {
	if len(name) > maxSessionName {
		p.Add("session_name", "is longer than %d bytes", maxSessionName)
		return
	}
	switch _, err := literalOf(name); {
	case err != nil:
		p.Add("session_name", "%v", err)
	case strings.ContainsFunc(name, unicode.IsControl):
		p.Add("session_name", "must not contain control characters")
	case name != "" && len(name) < minSession:
		p.Add("session_name", "must have at least %d characters", minSession)
	}
}

var errLongDocument = fmt.Errorf("is longer than the %d characters that the provider takes", MaxDocumentChars)

// checkDocument rejects what cannot be a policy.
func checkDocument(text string) error {
	if len(text) > maxDocumentBytes {
		return errLongDocument
	}
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &object) != nil || object == nil {
		return errors.New("must be a JSON object")
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c > 0xff }) {
		return errors.New("must hold characters up to U+00FF only: write the others as \\u escapes")
	}
	literal, err := literalOf(text)
	if err != nil {
		return err
	}
	if utf8.RuneCountInString(literal) > MaxDocumentChars {
		return errLongDocument
	}
	return nil
}

// badSourceIdentity says what the provider takes.
const badSourceIdentity = "must be 2 to 64 letters, digits and +=,.@_-"

func isSourceIdentity(text string) bool {
	return len(text) >= minSourceIdentity && len(text) <= maxSourceIdentity && sourceForm().MatchString(text)
}

// notForType begins what is wrong with a field of another type.
const notForType = "must only be given with the credential_type"

// checkOnlyFor rejects fields that mean nothing for the role's type.
func (r *Role) checkOnlyFor(p *engines.Problems) {
	for _, f := range []struct {
		name  string
		given bool
		kinds []string
	}{
		{"role_arns", len(r.RoleARNs) > 0, []string{AssumedRole}},
		// The tokens of STS are only for who has keys of a user, so there is no way through a role to them.
		{"assume_role_arns", len(r.AssumeRoleARNs) > 0, []string{IAMUser, AssumedRole}},
		{"policy_arns", len(r.PolicyARNs) > 0, []string{IAMUser, AssumedRole, FederationToken}},
		{"policy_document", r.PolicyDocument != "", []string{IAMUser, AssumedRole, FederationToken}},
		{"iam_groups", len(r.IAMGroups) > 0, []string{IAMUser, AssumedRole, FederationToken}},
		{"session_tags", len(r.SessionTags) > 0, []string{AssumedRole}},
		{"session_name", r.SessionName != "", []string{AssumedRole}},
		{"external_id", r.ExternalID != "", []string{AssumedRole}},
		{"source_identity", r.SourceIdentity != "", []string{AssumedRole}},
		{"max_users", r.MaxUsers > 0, []string{IAMUser}},
		{"default_sts_ttl", r.DefaultSTSTTL > 0, []string{AssumedRole, FederationToken, SessionToken}},
		{"max_sts_ttl", r.MaxSTSTTL > 0, []string{AssumedRole, FederationToken, SessionToken}},
		{"user_path", r.UserPath != "", []string{IAMUser}},
		{"permissions_boundary_arn", r.BoundaryARN != "", []string{IAMUser}},
		{"mfa_serial_number", r.MFASerial != "", []string{SessionToken}},
		{"wait_until_valid", r.WaitUntilValid > 0, []string{IAMUser}},
	} {
		if f.given && !slices.ContainsFunc(f.kinds, r.has) {
			p.Add(f.name, notForType+" %s", strings.Join(f.kinds, " or "))
		}
	}
}

// checkRequired rejects a role without what its type needs.
func (r *Role) checkRequired(p *engines.Problems) {
	if r.has(AssumedRole) && len(r.RoleARNs) == 0 {
		p.Add("role_arns", "is required with the credential_type %s", AssumedRole)
	}
	if (r.has(IAMUser) || r.has(FederationToken)) && len(r.PolicyARNs) == 0 && r.PolicyDocument == "" {
		p.Add("policy_document", "this or policy_arns is required with the credential_type %s", strings.Join(r.Types, " or "))
	}
}

func (r *Role) checkTTLs(p *engines.Problems) {
	for _, kind := range r.Types {
		longest := r.longest(kind)
		if longest == 0 {
			continue
		}
		within := func(field string, ttl time.Duration) {
			if ttl > 0 && (ttl < shortestSTS || ttl > longest) {
				p.Add(field, "must be between %s and %s, as the provider has it for this role", engines.Duration(shortestSTS), engines.Duration(longest))
			}
		}
		within("default_sts_ttl", r.DefaultSTSTTL)
		within("max_sts_ttl", r.MaxSTSTTL)
	}
}

// longest returns how long temporary credentials of a type can last, 0 for keys of users.
func (r *Role) longest(kind string) time.Duration {
	switch {
	case kind == IAMUser:
		return 0
	case kind != AssumedRole:
		return longestUser
	case len(r.AssumeRoleARNs) > 0:
		return longestChained
	}
	return longestRole
}
