package cloud

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
	maxDocumentChars   = 2048     // of the policy of a user or session, which is stored without white space
	maxDocumentBytes   = 64 << 10 // of the text with its templates
	maxUserPolicies    = 20       // managed ones; 10 unless the account's quota was raised
	maxSessionPolicies = 10
	maxGroups          = 10 // of a user
	maxTags            = 50
	maxPathBytes       = 512
	maxRoleARNs        = 256
	maxAssumeRoleARNs  = 5
	maxSessionName     = 1024 // the template's bytes
	maxWait            = time.Minute

	shortestSTS = 15 * time.Minute
	longestRole = 12 * time.Hour
	longestUser = 36 * time.Hour // of federation_token and session_token
	// longestChained is what sessions of roles get that were assumed with the credentials of another role.
	longestChained = time.Hour
	defaultSTS     = time.Hour
)

var (
	roleARNForm   = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/([!-~]+/)?[\w+=,.@-]{1,64}$`)
	policyARNForm = regexp.MustCompile(`^arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/([!-~]+/)?[\w+=,.@-]{1,128}$`)

	groupNameForm  = regexp.MustCompile(`^[\w+=,.@-]{1,128}$`)
	userPathForm   = regexp.MustCompile(`^/([!-~]+/)?$`)
	externalIDForm = regexp.MustCompile(`^[\w+=,.@:/-]*$`)
	mfaSerialForm  = regexp.MustCompile(`^[\w+=/:,.@-]{9,256}$`)
)

const (
	maxTagKey     = 128 // characters
	maxTagValue   = 256
	minExternalID = 2
	maxExternalID = 1224
	maxARNBytes   = 2048
	maxNamed      = 10 // elements that one message names
)

func isARN(text string, kind *regexp.Regexp) bool {
	return len(text) <= maxARNBytes && kind.MatchString(text)
}

// check returns everything that is wrong with the role. It repeats no values.
func (r *role) check() problems {
	var p problems
	known := len(r.Types) > 0
	for _, kind := range r.Types {
		known = known && slices.Contains(credentialTypes, kind)
	}
	switch {
	case len(r.Types) == 0:
		p.add("credential_type", "is required: one of %s", quoted(credentialTypes))
	case !known:
		p.add("credential_type", "must be one of %s", quoted(credentialTypes))
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
func (r *role) checkValues(p *problems) {
	checkARNs(p, "role_arns", r.RoleARNs, roleARNForm, "a role, such as \"arn:aws:iam::123456789012:role/name\"", maxRoleARNs)
	checkARNs(p, "assume_role_arns", r.AssumeRoleARNs, roleARNForm, "a role, such as \"arn:aws:iam::123456789012:role/name\"", maxAssumeRoleARNs)
	most := maxUserPolicies
	if len(r.Types) > 0 && !r.has(iamUser) {
		most = maxSessionPolicies
	}
	checkARNs(p, "policy_arns", r.PolicyARNs, policyARNForm, "a policy, such as \"arn:aws:iam::aws:policy/name\"", most)
	if r.PolicyDocument != "" {
		if err := checkDocument(r.PolicyDocument); err != nil {
			p.add("policy_document", "%v", err)
		}
	}
	if len(r.IAMGroups) > maxGroups {
		p.add("iam_groups", "has more than %d groups", maxGroups)
	}
	if slices.ContainsFunc(r.IAMGroups, func(name string) bool { return !groupNameForm.MatchString(name) }) {
		p.add("iam_groups", "must hold names of 1 to 128 letters, digits and +=,.@_-")
	}
	checkTags(p, "iam_tags", r.IAMTags)
	for key := range r.IAMTags {
		if strings.EqualFold(key, issueTag) {
			p.add("iam_tags", "must not hold %q, by which users that are made here are known", issueTag)
		}
	}
	checkSessionTags(p, r.SessionTags)
	checkSessionName(p, r.SessionName)
	if n := len(r.ExternalID); n > 0 && (n < minExternalID || n > maxExternalID || !externalIDForm.MatchString(r.ExternalID)) {
		p.add("external_id", "must be %d to %d letters, digits and +=,.@:/_-", minExternalID, maxExternalID)
	}
	if r.MaxSTSTTL > 0 && r.DefaultSTSTTL > r.MaxSTSTTL {
		p.add("default_sts_ttl", "must not be greater than max_sts_ttl")
	}
	if r.UserPath != "" && (len(r.UserPath) > maxPathBytes || !userPathForm.MatchString(r.UserPath)) {
		p.add("user_path", "must begin and end with \"/\" and hold at most %d printable ASCII characters without blanks", maxPathBytes)
	}
	if r.BoundaryARN != "" && !isARN(r.BoundaryARN, policyARNForm) {
		p.add("permissions_boundary_arn", "must be the ARN of a policy, such as \"arn:aws:iam::aws:policy/name\"")
	}
	if r.MFASerial != "" && !mfaSerialForm.MatchString(r.MFASerial) {
		p.add("mfa_serial_number", "must be the serial number or ARN of a device: 9 to 256 letters, digits and +=/:,.@_-")
	}
	if r.WaitUntilValid > maxWait {
		p.add("wait_until_valid", "must not be longer than %v", maxWait)
	}
}

// checkARNs names the first elements that are wrong.
func checkARNs(p *problems, field string, arns []string, kind *regexp.Regexp, what string, most int) {
	if len(arns) > most {
		p.add(field, "has more than %d elements", most)
	}
	var wrong []string
	for i, arn := range arns {
		if !isARN(arn, kind) && len(wrong) < maxNamed {
			wrong = append(wrong, strconv.Itoa(i+1))
		}
	}
	if wrong != nil {
		p.add(field, "must hold the ARN of %s; look at the elements %s", what, strings.Join(wrong, ", "))
	}
}

// checkTags checks what the provider takes as tags.
func checkTags(p *problems, field string, tags map[string]string) {
	if len(tags) > maxTags {
		p.add(field, "has more than %d tags", maxTags)
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
		p.add(field, "each key must be 1 to 128 letters, digits, blanks and _.:/=+-@, and must not begin with \"aws:\"")
	}
	if badValue {
		p.add(field, "each value must be at most 256 letters, digits, blanks and _.:/=+-@")
	}
	if len(folded) < len(tags) {
		p.add(field, "has keys that differ in case only, which are one to the provider")
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
func checkSessionTags(p *problems, tags map[string]string) {
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
		p.add("session_tags", "a value is wrong: %v", wrong)
	}
	checkTags(p, "session_tags", literal)
}

func checkSessionName(p *problems, name string) {
	if len(name) > maxSessionName {
		p.add("session_name", "is longer than %d bytes", maxSessionName)
		return
	}
	switch _, err := literalOf(name); {
	case err != nil:
		p.add("session_name", "%v", err)
	case strings.ContainsFunc(name, unicode.IsControl):
		p.add("session_name", "must not contain control characters")
	case name != "" && len(name) < minSession:
		p.add("session_name", "must have at least %d characters", minSession)
	}
}

var errLongDocument = fmt.Errorf("is longer than the %d characters that the provider takes", maxDocumentChars)

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
	if utf8.RuneCountInString(literal) > maxDocumentChars {
		return errLongDocument
	}
	return nil
}

// checkOnlyFor rejects fields that mean nothing for the role's type.
func (r *role) checkOnlyFor(p *problems) {
	for _, f := range []struct {
		name  string
		given bool
		kinds []string
	}{
		{"role_arns", len(r.RoleARNs) > 0, []string{assumedRole}},
		// The tokens of STS are only for who has keys of a user, so there is no way through a role to them.
		{"assume_role_arns", len(r.AssumeRoleARNs) > 0, []string{iamUser, assumedRole}},
		{"policy_arns", len(r.PolicyARNs) > 0, []string{iamUser, assumedRole, federationToken}},
		{"policy_document", r.PolicyDocument != "", []string{iamUser, assumedRole, federationToken}},
		{"iam_groups", len(r.IAMGroups) > 0, []string{iamUser, assumedRole, federationToken}},
		{"session_tags", len(r.SessionTags) > 0, []string{assumedRole}},
		{"session_name", r.SessionName != "", []string{assumedRole}},
		{"external_id", r.ExternalID != "", []string{assumedRole}},
		{"default_sts_ttl", r.DefaultSTSTTL > 0, []string{assumedRole, federationToken, sessionToken}},
		{"max_sts_ttl", r.MaxSTSTTL > 0, []string{assumedRole, federationToken, sessionToken}},
		{"user_path", r.UserPath != "", []string{iamUser}},
		{"permissions_boundary_arn", r.BoundaryARN != "", []string{iamUser}},
		{"mfa_serial_number", r.MFASerial != "", []string{sessionToken}},
		{"wait_until_valid", r.WaitUntilValid > 0, []string{iamUser}},
	} {
		if f.given && !slices.ContainsFunc(f.kinds, r.has) {
			p.add(f.name, "must only be given with the credential_type %s", strings.Join(f.kinds, " or "))
		}
	}
}

// checkRequired rejects a role without what its type needs.
func (r *role) checkRequired(p *problems) {
	if r.has(assumedRole) && len(r.RoleARNs) == 0 {
		p.add("role_arns", "is required with the credential_type %s", assumedRole)
	}
	if (r.has(iamUser) || r.has(federationToken)) && len(r.PolicyARNs) == 0 && r.PolicyDocument == "" {
		p.add("policy_document", "this or policy_arns is required with the credential_type %s", strings.Join(r.Types, " or "))
	}
}

func (r *role) checkTTLs(p *problems) {
	for _, kind := range r.Types {
		longest := r.longest(kind)
		if longest == 0 {
			continue
		}
		within := func(field string, ttl time.Duration) {
			if ttl > 0 && (ttl < shortestSTS || ttl > longest) {
				p.add(field, "must be between %s and %s, as the provider has it for this role", engines.Duration(shortestSTS), engines.Duration(longest))
			}
		}
		within("default_sts_ttl", r.DefaultSTSTTL)
		within("max_sts_ttl", r.MaxSTSTTL)
	}
}

// longest returns how long temporary credentials of a type can last, 0 for keys of users.
func (r *role) longest(kind string) time.Duration {
	switch {
	case kind == iamUser:
		return 0
	case kind != assumedRole:
		return longestUser
	case len(r.AssumeRoleARNs) > 0:
		return longestChained
	}
	return longestRole
}
