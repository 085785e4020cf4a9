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

	AccessKey        string    `json:"access_key,omitempty"`
	SecretKey        string    `json:"secret_key,omitempty"` // behind the barrier; never answered
	KeyCreatedAt     time.Time `json:"key_created_at,omitzero"`
	Region           string    `json:"region,omitempty"`
	IAMEndpoint      string    `json:"iam_endpoint,omitempty"`
	STSEndpoint      string    `json:"sts_endpoint,omitempty"`
	STSRegion        string    `json:"sts_region,omitempty"`
	STSFallbacks     []string  `json:"sts_fallback_endpoints,omitempty"`
	FallbackRegions  []string  `json:"sts_fallback_regions,omitempty"`
	MaxRetries       int       `json:"max_retries"` // -1: the SDK's default
	UsernameTemplate string    `json:"username_template,omitempty"`

	// RotationPeriod or RotationSchedule (cron, UTC) rotate the key by themselves, within RotationWindow of the time due.
	RotationPeriod   time.Duration `json:"rotation_period,omitempty"`
	RotationSchedule string        `json:"rotation_schedule,omitempty"`
	RotationWindow   time.Duration `json:"rotation_window,omitempty"`
	RotationDisabled bool          `json:"disable_automated_rotation,omitempty"`
	NextRotation     time.Time     `json:"next_rotation,omitzero"`
}

func (r *root) format() *int { return &r.Format }

// clients keeps the Client of the root configuration in use.
type clients struct{}

// api returns the provider as the root configuration reaches it, through the roles to assume first.
func (e *engine) api(ctx context.Context, m engines.Mount, through ...aws.AssumeRole) (aws.API, error) {
	panic("todo")
}

type none struct{}

func readRoot(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }

func writeRoot(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }
