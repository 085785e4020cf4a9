package cloud

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const rolePrefix storage.Key = "role/"

// Types of credentials.
const (
	iamUser         = "iam_user"
	assumedRole     = "assumed_role"
	federationToken = "federation_token"
	sessionToken    = "session_token"
)

// role is the stored form of one, as JSON.
type role struct {
	Format int `json:"format"` // 1

	// Types is one type, or for legacy roles those that their policy or ARN allows.
	Types          []string           `json:"types"`
	RoleARNs       engines.StringList `json:"role_arns,omitempty"`
	AssumeRoleARNs engines.StringList `json:"assume_role_arns,omitempty"` // to go through first
	PolicyARNs     engines.StringList `json:"policy_arns,omitempty"`
	PolicyDocument string             `json:"policy_document,omitempty"` // compact JSON, perhaps with templates
	IAMGroups      engines.StringList `json:"iam_groups,omitempty"`
	IAMTags        map[string]string  `json:"iam_tags,omitempty"`
	SessionTags    map[string]string  `json:"session_tags,omitempty"` // values may be templates
	SessionName    string             `json:"session_name,omitempty"` // a template
	ExternalID     string             `json:"external_id,omitempty"`
	DefaultSTSTTL  time.Duration      `json:"default_sts_ttl,omitempty"`
	MaxSTSTTL      time.Duration      `json:"max_sts_ttl,omitempty"`
	UserPath       string             `json:"user_path,omitempty"`
	BoundaryARN    string             `json:"permissions_boundary_arn,omitempty"`
	MFASerial      string             `json:"mfa_serial_number,omitempty"`
	WaitUntilValid time.Duration      `json:"wait_until_valid,omitempty"` // how long a new key may be waited for
	Legacy         string             `json:"legacy,omitempty"`           // "policy" or "arn": the parameter it was made with
	InvalidData    string             `json:"invalid_data,omitempty"`

	name string // where it is stored
}

func (r *role) format() *int { return &r.Format }

// getRole returns a role, nil if there is none.
func getRole(ctx context.Context, s getter, name string) (*role, error) { panic("todo") }

type roleIn struct {
	Name string `json:"name" help:"Name of the role."`
}

func roleExists(context.Context, *engines.Request) (bool, error) { panic("todo") }

func listRoles(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }

func readRole(context.Context, *engines.Request, *roleIn) (*engines.Response, error) { panic("todo") }

func writeRole(context.Context, *engines.Request, *roleIn) (*engines.Response, error) { panic("todo") }

func deleteRole(context.Context, *engines.Request, *roleIn) (*engines.Response, error) { panic("todo") }
