package root

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/username"
	"github.com/coffer-project/coffer/storage"
)

const (
	maxRetries        = 1000
	minRotationPeriod = 10 * time.Second
	minRotationWindow = time.Minute
)

type rootIn struct {
	AccessKey        string            `json:"access_key" form:"trim" max:"128" help:"Access key id. Without it and secret_key the environment, the shared files and the role of the machine are asked, in this order."`
	SecretKey        engines.Sensitive `json:"secret_key" max:"512" help:"Secret access key. It is never answered."`
	RoleARN          string            `json:"role_arn" form:"trim" max:"2048" help:"Role that is assumed with a token of this server, instead of a key. Required with identity_token_audience, and for it only."`
	IdentityAudience string            `json:"identity_token_audience" form:"trim" max:"1024" help:"Audience of the token, as the identity provider in IAM has it. Its subject is plugin-identity:<namespace id>:secret:<accessor of the mount>. Not with access_key."`
	IdentityTTL      engines.Duration  `json:"identity_token_ttl" help:"Lifetime of the token, an hour without it."`
	IdentityKey      string            `json:"identity_token_key" form:"trim" max:"128" help:"Key that signs the token: only default."`

	Region          string             `json:"region" form:"trim" help:"Region of requests. Without it that of the environment is used (AWS_REGION, then AWS_DEFAULT_REGION), else us-east-1."`
	IAMEndpoint     string             `json:"iam_endpoint" form:"trim" max:"2048" help:"URL of IAM, if it is not the provider's own."`
	STSEndpoint     string             `json:"sts_endpoint" form:"trim" max:"2048" help:"URL of STS, if it is not the provider's own."`
	STSRegion       string             `json:"sts_region" form:"trim" help:"Region of STS, if it is not that of region."`
	STSFallbacks    engines.StringList `json:"sts_fallback_endpoints" max:"16" help:"URLs of STS to try in order when it cannot be reached where it is asked first."`
	FallbackRegions engines.StringList `json:"sts_fallback_regions" max:"16" help:"Regions of sts_fallback_endpoints, one for each."`
	MaxRetries      int                `json:"max_retries" default:"-1" help:"How often a call that failed for a reason that may pass is repeated; -1 is the SDK's default."`

	UsernameTemplate string           `json:"username_template" max:"4096" help:"Template of the names of users (.Type is IAM, at most 64 characters) and of federated users (.Type is STS, at most 32), of .DisplayName and .PolicyName."`
	MaxUsers         int              `json:"max_users" help:"How many users all roles may have issued at once, on each cluster; 0 is without limit. See max_users of roles."`
	RotationPeriod   engines.Duration `json:"rotation_period" help:"Rotate the key by itself so often; 0 is never. Not with rotation_schedule."`
	RotationSchedule string           `json:"rotation_schedule" form:"trim" max:"128" help:"Rotate the key by itself at these times: five fields of cron, in UTC."`
	RotationWindow   engines.Duration `json:"rotation_window" help:"How long after a time of rotation_schedule the rotation may begin; 0 is without limit."`
	RotationDisabled bool             `json:"disable_automated_rotation" help:"Keep rotation_period or rotation_schedule, but do not rotate by them."`
}

// writeRoot replaces the configuration: what is absent goes back to its default. The provider is not asked about it.
func writeRoot(ctx context.Context, req *engines.Request, in *rootIn) (*engines.Response, error) {
	r := in.root()
	p, warnings := r.check()
	if in.IdentityKey != "" && in.IdentityKey != "default" {
		p.Add("identity_token_key", "there is one key for identity tokens, \"default\": leave it out")
	}
	if p != nil {
		return nil, p.Err()
	}
	if r.IdentityAudience != "" { // which also makes the keys of the issuer, at the primary
		if _, err := identityToken(ctx, req.Mount, r); err != nil {
			return nil, err
		}
	}
	now := time.Now()
	var lost string
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error {
		old, _, err := Get(ctx, t)
		if err != nil {
			return err
		}
		r.succeed(old, now)
		lost = r.loses(old)
		return engines.PutRecord(t, Key, r)
	})
	if err != nil {
		return nil, err
	}
	if lost != "" {
		warnings = append(warnings, lost)
	}
	if warnings == nil {
		return nil, nil
	}
	return &engines.Response{Warnings: warnings}, nil
}

func (in *rootIn) root() *Root {
	r := &Root{
		AccessKey: strings.TrimSpace(in.AccessKey), SecretKey: strings.TrimSpace(in.SecretKey.Reveal()),
		Region: strings.TrimSpace(in.Region), STSRegion: strings.TrimSpace(in.STSRegion),
		IAMEndpoint: strings.TrimSpace(in.IAMEndpoint), STSEndpoint: strings.TrimSpace(in.STSEndpoint),
		STSFallbacks: in.STSFallbacks, FallbackRegions: in.FallbackRegions, MaxRetries: in.MaxRetries,
		RoleARN: strings.TrimSpace(in.RoleARN), IdentityAudience: strings.TrimSpace(in.IdentityAudience), IdentityTTL: time.Duration(in.IdentityTTL),
		UsernameTemplate: in.UsernameTemplate, MaxUsers: in.MaxUsers,
		RotationPeriod: time.Duration(in.RotationPeriod), RotationSchedule: strings.TrimSpace(in.RotationSchedule),
		RotationWindow: time.Duration(in.RotationWindow), RotationDisabled: in.RotationDisabled,
	}
	if strings.TrimSpace(r.UsernameTemplate) == "" {
		r.UsernameTemplate = ""
	}
	return r
}

// succeed takes from the configuration before what a write of the same key and the same terms of rotation leaves alone:
// clients repeat the same write, which must not restart the rotation period.
func (r *Root) succeed(old *Root, now time.Time) {
	r.KeyCreatedAt = time.Time{}
	sameKey := r.AccessKey == old.AccessKey && r.SecretKey == old.SecretKey
	if sameKey {
		r.KeyCreatedAt = old.KeyCreatedAt
	}
	if sameKey && r.RotationPeriod == old.RotationPeriod && r.RotationSchedule == old.RotationSchedule && r.RotationDisabled == old.RotationDisabled {
		r.NextRotation = old.NextRotation
		return
	}
	r.SetNextRotation(now)
}

// loses returns a warning about a key that is configured no longer, "" if there is none.
func (r *Root) loses(old *Root) string {
	switch {
	case r.AccessKey == old.AccessKey && (r.SecretKey == old.SecretKey || old.KeyCreatedAt.IsZero()):
		return ""
	case r.AccessKey == old.AccessKey:
		return "secret_key: differs from the secret of a key that a rotation made and only this server knew: if it is wrong, delete the key at the provider (" + old.AccessKey + ") and configure another one"
	case !old.KeyCreatedAt.IsZero():
		return "access_key: replaces a key that a rotation made and whose secret only this server knew: delete it at the provider (" + old.AccessKey + ")"
	case r.AccessKey == "" && r.IdentityAudience == "":
		return "access_key, secret_key: were configured, and are forgotten because this request does not give them: the provider is now reached with the credentials of the machine"
	}
	return ""
}

// check returns everything that keeps the configuration from working, and what should be known about it.
func (r *Root) check() (p engines.Problems, warnings []string) {
	r.checkKeys(&p)
	warnings = r.checkPlaces(&p)
	if r.MaxRetries < -1 || r.MaxRetries > maxRetries {
		p.Add("max_retries", "must be from 0 to %d, or -1 for the SDK's default", maxRetries)
	}
	if r.UsernameTemplate != "" {
		problem, known := username.Check(r.UsernameTemplate)
		if problem != "" {
			p.Add("username_template", "%s", problem)
		}
		for _, text := range known {
			warnings = append(warnings, "username_template: "+text)
		}
	}
	if r.MaxUsers < 0 {
		p.Add("max_users", "must not be negative")
	}
	r.checkIdentity(&p)
	r.checkRotation(&p)
	if strings.HasPrefix(r.AccessKey, "ASIA") {
		warnings = append(warnings, "access_key: is that of temporary credentials, which work with their session token only: give the key of a user")
	}
	return p, warnings
}

func (r *Root) checkKeys(p *engines.Problems) {
	switch {
	case r.AccessKey != "" && r.SecretKey == "":
		p.Add("secret_key", "is required with access_key: give both, or neither to use the credentials of the machine")
	case r.AccessKey == "" && r.SecretKey != "":
		p.Add("access_key", "is required with secret_key: give both, or neither to use the credentials of the machine")
	}
	const malformed = "may hold visible ASCII characters only"
	if strings.ContainsFunc(r.AccessKey, invisible) {
		p.Add("access_key", malformed)
	}
	if strings.ContainsFunc(r.SecretKey, invisible) {
		p.Add("secret_key", malformed)
	}
}

// roleARN is the form of a role's ARN.
var roleARN = engines.Pattern(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/([!-~]+/)?[\w+=,.@-]{1,64}$`)

func (r *Root) checkIdentity(p *engines.Problems) {
	switch {
	case r.IdentityAudience == "" && r.RoleARN != "":
		p.Add("identity_token_audience", "is required with role_arn: the role is assumed with an identity token. Roles to assume with a key are those of roles")
	case r.IdentityAudience == "" && r.IdentityTTL != 0:
		p.Add("identity_token_audience", "is required with identity_token_ttl")
	case r.IdentityAudience == "":
	case r.AccessKey != "" || r.SecretKey != "":
		p.Add("identity_token_audience", "takes the place of access_key and secret_key: give one or the other")
	case r.RoleARN == "":
		p.Add("role_arn", "is required with identity_token_audience: it is assumed with the token")
	case !roleARN().MatchString(r.RoleARN):
		p.Add("role_arn", "must be the ARN of a role, such as \"arn:aws:iam::123456789012:role/name\"")
	}
	if strings.ContainsFunc(r.IdentityAudience, invisible) {
		p.Add("identity_token_audience", "may hold visible ASCII characters only")
	}
}

// invisible reports whether a character is not printable ASCII, or is a blank.
func invisible(c rune) bool { return c <= ' ' || c > '~' }

// checkPlaces checks endpoints and regions.
func (r *Root) checkPlaces(p *engines.Problems) (warnings []string) {
	endpoint := func(field, which, text string) {
		plain, err := checkEndpoint(text)
		switch {
		case err != nil:
			p.Add(field, "%s%v", which, err)
		case plain:
			warnings = append(warnings, fmt.Sprintf("%s: %sis a URL without TLS: the credentials that come from there can be read on the way", field, which))
		}
	}
	region := func(field, which, text string) {
		if !regionName().MatchString(text) {
			p.Add(field, "%smust be the name of a region, such as \"us-east-1\"", which)
		}
	}
	if r.Region != "" {
		region("region", "", r.Region)
	}
	if r.IAMEndpoint != "" {
		endpoint("iam_endpoint", "", r.IAMEndpoint)
	}
	if r.STSEndpoint != "" {
		endpoint("sts_endpoint", "", r.STSEndpoint)
	}
	if r.STSRegion != "" {
		region("sts_region", "", r.STSRegion)
	}
	for i, text := range r.STSFallbacks {
		endpoint("sts_fallback_endpoints", fmt.Sprintf("element %d ", i+1), text)
	}
	for i, text := range r.FallbackRegions {
		region("sts_fallback_regions", fmt.Sprintf("element %d ", i+1), text)
	}
	if e, g := len(r.STSFallbacks), len(r.FallbackRegions); e != g {
		p.Add("sts_fallback_regions", "has %d elements and sts_fallback_endpoints has %d: give one region for each endpoint", g, e)
	}
	return warnings
}

// regionName is what may become part of a host's name.
var regionName = engines.Pattern(`^[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// checkEndpoint reports whether a URL is one without TLS. Errors do not repeat it.
func checkEndpoint(text string) (plain bool, err error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.ContainsFunc(text, invisible):
		return false, errors.New("must be a URL such as \"https://sts.eu-west-1.amazonaws.com\"")
	case u.User != nil:
		return false, errors.New("must not hold a user or a password")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return false, errors.New("must not have a query or a fragment")
	}
	return u.Scheme == "http", nil
}

func (r *Root) checkRotation(p *engines.Problems) {
	if r.RotationPeriod > 0 && r.RotationPeriod < minRotationPeriod {
		p.Add("rotation_period", "must be at least 10s")
	}
	if r.RotationSchedule != "" {
		if _, err := parseSchedule(r.RotationSchedule); err != nil {
			p.Add("rotation_schedule", "%v", err)
		}
	}
	switch {
	case r.RotationPeriod > 0 && r.RotationSchedule != "":
		p.Add("rotation_schedule", "cannot be given together with rotation_period: the key is rotated by the one or the other")
	case (r.RotationPeriod > 0 || r.RotationSchedule != "") && r.AccessKey == "":
		p.Add("access_key", "is required with rotation_period and rotation_schedule: without it there is no key to rotate")
	}
	switch {
	case r.RotationWindow == 0:
	case r.RotationPeriod > 0:
		p.Add("rotation_window", "rotation_window does not apply to period: it is for rotation_schedule only")
	case r.RotationSchedule == "":
		p.Add("rotation_window", "is for rotation_schedule only")
	case r.RotationWindow < minRotationWindow:
		p.Add("rotation_window", "must be at least a minute")
	}
}

// parseSchedule reads five fields of cron, or a word such as @daily, in UTC.
func parseSchedule(text string) (cron.Schedule, error) {
	switch {
	case strings.Contains(text, "="):
		return nil, errors.New("is in UTC and takes no time zone")
	case strings.HasPrefix(text, "@every"):
		return nil, errors.New("takes times and no distances: use rotation_period")
	}
	s, err := cron.ParseStandard("CRON_TZ=UTC " + text)
	if err != nil {
		return nil, errors.New("must be five fields of cron (minute, hour, day of the month, month, day of the week), such as \"0 3 * * SAT\"")
	}
	if s.Next(time.Now().UTC()).IsZero() {
		return nil, errors.New("names a day that never comes")
	}
	return s, nil
}
