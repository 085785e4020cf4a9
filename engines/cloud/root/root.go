// Package root is how a mount of the cloud engine reaches the provider: the root configuration, and the clients that are made of it.
// The rotation of its key is the engine's. Start reading at Root, then Clients.
package root

import (
	"context"
	"maps"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/username"
	"github.com/coffer-project/coffer/storage"
)

// Key is where the configuration is stored, below the mount.
const Key storage.Key = "config/root"

// Root is the stored root configuration, as JSON.
type Root struct {
	Format int `json:"format"` // 1

	AccessKey string `json:"access_key,omitempty"`
	SecretKey string `json:"secret_key,omitempty"` // behind the barrier; never in a response
	// KeyCreatedAt is known of keys that a rotation created, zero for keys that were configured.
	KeyCreatedAt time.Time `json:"key_created_at,omitzero"`
	// RoleARN is assumed with identity tokens of this server for IdentityAudience, instead of a key.
	RoleARN          string        `json:"role_arn,omitempty"`
	IdentityAudience string        `json:"identity_token_audience,omitempty"`
	IdentityTTL      time.Duration `json:"identity_token_ttl,omitempty"` // 0: the issuer's default

	Region           string   `json:"region,omitempty"`
	IAMEndpoint      string   `json:"iam_endpoint,omitempty"`
	STSEndpoint      string   `json:"sts_endpoint,omitempty"`
	STSRegion        string   `json:"sts_region,omitempty"`
	STSFallbacks     []string `json:"sts_fallback_endpoints,omitempty"`
	FallbackRegions  []string `json:"sts_fallback_regions,omitempty"` // one for each of STSFallbacks
	MaxRetries       int      `json:"max_retries"`                    // -1: the SDK's default
	UsernameTemplate string   `json:"username_template,omitempty"`    // "": username.DefaultTemplate
	MaxUsers         int      `json:"max_users,omitempty"`            // of all roles, at once; 0: no limit

	// RotationPeriod or RotationSchedule (cron, UTC) rotate the key by themselves, within RotationWindow of the time due.
	RotationPeriod   time.Duration `json:"rotation_period,omitempty"`
	RotationSchedule string        `json:"rotation_schedule,omitempty"`
	RotationWindow   time.Duration `json:"rotation_window,omitempty"`
	RotationDisabled bool          `json:"disable_automated_rotation,omitempty"`
	NextRotation     time.Time     `json:"next_rotation,omitzero"`
}

func (r *Root) RecordFormat() *int { return &r.Format }

// defaultMaxRetries leaves it to the SDK.
const defaultMaxRetries = -1

// Get returns the root configuration, and whether one is stored. Without one the provider is reached with the credentials
// of the machine.
func Get(ctx context.Context, s engines.Getter) (*Root, bool, error) {
	r := &Root{MaxRetries: defaultMaxRetries}
	found, err := engines.GetRecord(ctx, s, Key, r)
	return r, found, err
}

// identityToken issues a token for a mount.
func identityToken(ctx context.Context, m engines.Mount, r *Root) (engines.Sensitive, error) {
	if m.IdentityToken == nil {
		return "", engines.Invalid("identity_token_audience: this server issues no identity tokens")
	}
	return m.IdentityToken(ctx, r.IdentityAudience, r.IdentityTTL)
}

// options says how a mount reaches the provider, through roles to assume first.
func (r *Root) options(m engines.Mount, through []aws.AssumeRole) aws.Options {
	o := aws.Options{
		AccessKey: r.AccessKey, SecretKey: engines.Sensitive(r.SecretKey),
		Region: r.Region, IAMEndpoint: r.IAMEndpoint, STSEndpoint: r.STSEndpoint, STSRegion: r.STSRegion,
		MaxRetries: r.MaxRetries, AssumeRoles: through,
	}
	if r.IdentityAudience != "" {
		reach := *r
		o.WebIdentity = &aws.WebIdentity{RoleARN: r.RoleARN, Token: func(ctx context.Context) (engines.Sensitive, error) {
			return identityToken(ctx, m, &reach)
		}}
	}
	for i, url := range r.STSFallbacks {
		o.STSFallbacks = append(o.STSFallbacks, aws.Endpoint{URL: url, Region: r.FallbackRegions[i]})
	}
	return o
}

// SetNextRotation works out when the key is due, from now on; zero: never by itself.
func (r *Root) SetNextRotation(now time.Time) {
	r.NextRotation = time.Time{}
	switch {
	case r.RotationDisabled:
	case r.RotationPeriod > 0:
		r.NextRotation = now.UTC().Add(r.RotationPeriod)
	case r.RotationSchedule != "":
		if s, err := parseSchedule(r.RotationSchedule); err == nil {
			r.NextRotation = s.Next(now.UTC())
		}
	}
}

type none struct{}

// Routes declares the paths of the configuration. A read also has what more returns.
func Routes(r *engines.Router, more func(context.Context, engines.Getter) (map[string]any, error)) {
	read := func(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
		return readRoot(ctx, req, more)
	}
	engines.On(r, engines.Read, "config/root", "Read the root configuration, without its secret key.", 0, read).
		Returns(`access_key, disable_automated_rotation: boolean, iam_endpoint, identity_token_audience, identity_token_ttl: integer,
			key_created_at: string?, max_retries: integer, max_users: integer, next_rotation: string?, region, role_arn,
			rotation_failures: integer, rotation_last_error, rotation_period: integer, rotation_schedule, rotation_window: integer,
			sts_endpoint, sts_fallback_endpoints: [string], sts_fallback_regions: [string], sts_region, username_template`)
	engines.On(r, engines.Update, "config/root", "Configure how the provider is reached. What is left out goes back to its default.", engines.Strict, writeRoot)
}

func readRoot(ctx context.Context, req *engines.Request, more func(context.Context, engines.Getter) (map[string]any, error)) (*engines.Response, error) {
	r, found, err := Get(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, engines.NotFound("")
	}
	also, err := more(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	data := r.data()
	maps.Copy(data, also)
	return &engines.Response{Data: data}, nil
}

// data is everything but the secret.
func (r *Root) data() map[string]any {
	template := r.UsernameTemplate
	if template == "" {
		template = username.DefaultTemplate
	}
	return map[string]any{
		"access_key":                 r.AccessKey,
		"role_arn":                   r.RoleARN,
		"identity_token_audience":    r.IdentityAudience,
		"identity_token_ttl":         int64(r.IdentityTTL / time.Second),
		"region":                     aws.Region(r.Region),
		"max_users":                  r.MaxUsers,
		"iam_endpoint":               r.IAMEndpoint,
		"sts_endpoint":               r.STSEndpoint,
		"sts_region":                 r.STSRegion,
		"sts_fallback_endpoints":     append([]string{}, r.STSFallbacks...),
		"sts_fallback_regions":       append([]string{}, r.FallbackRegions...),
		"max_retries":                r.MaxRetries,
		"username_template":          template,
		"rotation_period":            int64(r.RotationPeriod / time.Second),
		"rotation_schedule":          r.RotationSchedule,
		"rotation_window":            int64(r.RotationWindow / time.Second),
		"disable_automated_rotation": r.RotationDisabled,
		"key_created_at":             TimeOrNil(r.KeyCreatedAt),
		"next_rotation":              TimeOrNil(r.NextRotation),
	}
}

// TimeOrNil is the form of times in responses: RFC 3339, null if there is none.
func TimeOrNil(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}

// Rotates reports whether the key is rotated by itself.
func (r *Root) Rotates() bool {
	return r.AccessKey != "" && !r.RotationDisabled && (r.RotationPeriod > 0 || r.RotationSchedule != "")
}

// ScheduleInvalid reports whether the time of the next rotation is invalid: there is none, its window is over, or it was
// set by a clock that was ahead.
func (r *Root) ScheduleInvalid(now time.Time) bool {
	switch {
	case !r.Rotates():
		return false
	case r.NextRotation.IsZero():
		return true
	case r.RotationPeriod > 0:
		return r.NextRotation.After(now.Add(r.RotationPeriod))
	}
	return r.RotationWindow > 0 && now.After(r.NextRotation.Add(r.RotationWindow))
}

// SameAccount returns an error if the root credentials have come to be of another account than the user, which is then not
// gone but out of reach.
func SameAccount(ctx context.Context, api aws.API, user, account string) error {
	if account == "" {
		return nil
	}
	arn, err := api.CallerIdentity(ctx, aws.Credentials{})
	if err != nil {
		return err
	}
	if now := AccountOf(arn); now != account {
		return engines.Invalid("user %s is in account %s and the root credentials are of account %s: remove by hand what was made there, or configure the former root credentials", user, account, now)
	}
	return nil
}
