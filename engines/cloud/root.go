package cloud

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/storage"
)

const rootKey storage.Key = "config/root"

// root is the stored root configuration, as JSON.
type root struct {
	Format int `json:"format"` // 1

	AccessKey string `json:"access_key,omitempty"`
	SecretKey string `json:"secret_key,omitempty"` // behind the barrier; never in a response
	// KeyCreatedAt is known of keys that a rotation created, zero for keys that were configured.
	KeyCreatedAt     time.Time `json:"key_created_at,omitzero"`
	Region           string    `json:"region,omitempty"`
	IAMEndpoint      string    `json:"iam_endpoint,omitempty"`
	STSEndpoint      string    `json:"sts_endpoint,omitempty"`
	STSRegion        string    `json:"sts_region,omitempty"`
	STSFallbacks     []string  `json:"sts_fallback_endpoints,omitempty"`
	FallbackRegions  []string  `json:"sts_fallback_regions,omitempty"` // one for each of STSFallbacks
	MaxRetries       int       `json:"max_retries"`                    // -1: the SDK's default
	UsernameTemplate string    `json:"username_template,omitempty"`    // "": defaultUsernameTemplate

	// RotationPeriod or RotationSchedule (cron, UTC) rotate the key by themselves, within RotationWindow of the time due.
	RotationPeriod   time.Duration `json:"rotation_period,omitempty"`
	RotationSchedule string        `json:"rotation_schedule,omitempty"`
	RotationWindow   time.Duration `json:"rotation_window,omitempty"`
	RotationDisabled bool          `json:"disable_automated_rotation,omitempty"`
	NextRotation     time.Time     `json:"next_rotation,omitzero"`
}

func (r *root) RecordFormat() *int { return &r.Format }

// defaultMaxRetries leaves it to the SDK.
const defaultMaxRetries = -1

// getRoot returns the root configuration, and whether one is stored. Without one the provider is reached with the credentials
// of the machine.
func getRoot(ctx context.Context, s engines.Getter) (*root, bool, error) {
	r := &root{MaxRetries: defaultMaxRetries}
	found, err := engines.GetRecord(ctx, s, rootKey, r)
	return r, found, err
}

// options says how the provider is reached, through roles to assume first.
func (r *root) options(through []aws.AssumeRole) aws.Options {
	o := aws.Options{
		AccessKey: r.AccessKey, SecretKey: engines.Sensitive(r.SecretKey),
		Region: r.Region, IAMEndpoint: r.IAMEndpoint, STSEndpoint: r.STSEndpoint, STSRegion: r.STSRegion,
		MaxRetries: r.MaxRetries, AssumeRoles: through,
	}
	for i, url := range r.STSFallbacks {
		o.STSFallbacks = append(o.STSFallbacks, aws.Endpoint{URL: url, Region: r.FallbackRegions[i]})
	}
	return o
}

// setNextRotation works out when the key is due, from now on; zero: never by itself.
func (r *root) setNextRotation(now time.Time) {
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

func readRoot(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	r, found, err := getRoot(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, engines.NotFound("")
	}
	n, err := getRotation(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	data := r.data()
	if n.Failures > 0 {
		data["rotation_failures"], data["rotation_last_error"] = n.Failures, n.LastError
	}
	return &engines.Response{Data: data}, nil
}

// data is everything but the secret.
func (r *root) data() map[string]any {
	template := r.UsernameTemplate
	if template == "" {
		template = defaultUsernameTemplate
	}
	return map[string]any{
		"access_key":                 r.AccessKey,
		"region":                     r.Region,
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
		"key_created_at":             timeOrNil(r.KeyCreatedAt),
		"next_rotation":              timeOrNil(r.NextRotation),
	}
}

// timeOrNil is the form of times in responses: RFC 3339, null if there is none.
func timeOrNil(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(time.RFC3339)
}
