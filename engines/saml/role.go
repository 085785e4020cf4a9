package saml

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

const rolePrefix storage.Key = "role/"

// role is the stored form of one, as JSON.
type role struct {
	Format int `json:"format"` // 1

	BoundSubjects       engines.StringList            `json:"bound_subjects,omitempty"`
	BoundSubjectsType   string                        `json:"bound_subjects_type"` // "string" or "glob"
	BoundAttributes     map[string]engines.StringList `json:"bound_attributes,omitempty"`
	BoundAttributesType string                        `json:"bound_attributes_type"`
	GroupsAttribute     string                        `json:"groups_attribute,omitempty"`
	AliasMetadata       engines.StringMap             `json:"alias_metadata,omitempty"`
	// RequireSameAddress demands that the login is started, confirmed in the browser and redeemed from one address.
	RequireSameAddress bool                `json:"require_same_address,omitempty"`
	Token              engines.TokenFields `json:"token"`
	// Older are the older names of token fields that were used last: reads answer these, too.
	Older []string `json:"older,omitempty"`

	name string
}

func (r *role) format() *int { return &r.Format }

// getRole returns a role, nil if there is none. Names are compared in lower case.
func getRole(ctx context.Context, s getter, name string) (*role, error) { panic("todo") }

// identity is what a role decides by.
type identity struct {
	Subject    string              `json:"subject"`
	Attributes map[string][]string `json:"attributes"`
}

// admits returns nil if the role lets the user in, else which bound value the user lacks: in words that may be shown to
// the user, so without the values that would be right.
func (r *role) admits(user identity) error { panic("todo") }

// groups returns the names of the groups that the user is in, nil if the role has no groups attribute.
func (r *role) groups(user identity) []string { panic("todo") }

type roleIn struct {
	Name string `json:"name" help:"Name of the role."`
}

func roleExists(ctx context.Context, req *engines.Request) (bool, error) { panic("todo") }

func listRoles(context.Context, *engines.Request, *none) (*engines.Response, error) { panic("todo") }

func readRole(context.Context, *engines.Request, *roleIn) (*engines.Response, error) { panic("todo") }

func writeRole(context.Context, *engines.Request, *roleIn) (*engines.Response, error) { panic("todo") }

func deleteRole(context.Context, *engines.Request, *roleIn) (*engines.Response, error) { panic("todo") }
