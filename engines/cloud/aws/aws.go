// Package aws speaks to IAM and STS, the provider's services for users and temporary credentials.
//
// A Client belongs to one set of root credentials. Its errors are *Error, with a Kind that says what to do about them, and
// hold neither keys nor tokens. The SDK retries calls within max_retries, except those that would create something twice: see
// CreateAccessKey and CreateUser. Every call ends after Options.CallTime. The rest is in client.go (how requests are made), iam.go,
// remove.go, sts.go and errors.go. Everything is safe for concurrent use.
package aws

import (
	"context"
	"time"

	"github.com/coffer-project/coffer/engines"
)

// Options say how the services are reached, and as whom.
type Options struct {
	// AccessKey and SecretKey are static credentials. Without them the SDK's chain is asked: environment, shared files,
	// the role of the machine.
	AccessKey string
	SecretKey engines.Sensitive
	// WebIdentity takes the place of static credentials; nil: there is none.
	WebIdentity *WebIdentity
	// Region of requests: "" is that of the environment (AWS_REGION, then AWS_DEFAULT_REGION), else us-east-1.
	Region      string
	IAMEndpoint string // "": the provider's own
	STSEndpoint string
	STSRegion   string // of requests to STS; "": Region
	// STSFallbacks are tried in order when STS cannot be reached at its first endpoint, or fails there.
	STSFallbacks []Endpoint
	// MaxRetries of calls that failed for a reason that may pass; -1 is the SDK's default.
	MaxRetries int
	// AssumeRoles are roles that are assumed one after the other before anything else is done, for accounts elsewhere.
	AssumeRoles []AssumeRole
	// Timeout of one attempt, and of all those at one endpoint of STS while there are others to go to. 0 is 20 seconds.
	Timeout time.Duration
	// CallTime bounds a call with all its attempts and the time between them. 0 is two minutes.
	CallTime time.Duration
	// Backoff is how long to wait after the given attempt, which counts from 1. nil is the SDK's own, with jitter, up to
	// 20 seconds, and for what RemoveUser waits for up to 3; it is here for tests.
	Backoff func(attempt int) time.Duration
}

// WebIdentity are the credentials of a role that is assumed with a token (AssumeRoleWithWebIdentity).
type WebIdentity struct {
	RoleARN string
	Token   func(context.Context) (engines.Sensitive, error)
}

// Endpoint is a service somewhere else. Without a URL it is the provider's own in the region.
type Endpoint struct{ URL, Region string }

// Credentials authenticate requests to the provider.
type Credentials struct {
	AccessKey    string
	SecretKey    engines.Sensitive
	SessionToken engines.Sensitive // "" for keys of users
	ExpiresAt    time.Time         // zero for keys of users
	ARN          string            // of whom they are, "" if the call does not say
}

// User is one of IAM.
type User struct {
	Name string
	ID   string // never used again, unlike the name
	ARN  string
	Path string
	// CreatedAt and Tags say whose a user is: who reads Tags sees all of them, up to 50.
	CreatedAt time.Time
	Tags      map[string]string
}

// NewUser is a user to make.
type NewUser struct {
	Name        string
	Path        string // "" is "/"
	BoundaryARN string // "": none
	Tags        map[string]string
}

// Key is an access key, without its secret.
type Key struct {
	ID        string
	CreatedAt time.Time
	Active    bool
}

// AssumeRole is what is asked of STS for temporary credentials of a role.
type AssumeRole struct {
	RoleARN    string
	Session    string // 2 to 64 characters
	ExternalID string
	Policy     string // JSON, "": none
	PolicyARNs []string
	Tags       map[string]string
	// SourceIdentity stays with all sessions that come of this one; "": none.
	SourceIdentity string
	TTL            time.Duration // 0: the role's default
}

// Federation is what is asked of STS for temporary credentials of a federated user.
type Federation struct {
	Name       string // 2 to 32 characters
	Policy     string
	PolicyARNs []string
	Tags       map[string]string
	TTL        time.Duration
}

// MFA is a code of a device; the zero value is none.
type MFA struct {
	Serial string
	Code   string
}

// Kind says what sort of failure an Error is.
type Kind int

const (
	Other       Kind = iota
	NotFound         // NoSuchEntity
	Exists           // EntityAlreadyExists
	Limit            // LimitExceeded: of keys, policies, users
	Denied           // the root credentials may not, or are not valid
	Invalid          // the request cannot be right: a malformed policy, a bad name
	Throttled        // too many requests; also after all retries
	Conflict         // DeleteConflict, ConcurrentModification: to be tried again
	Unavailable      // not reached, timed out, 5xx: it may have been done
)

// Error is a failed call.
type Error struct {
	Kind   Kind
	Action string // such as "CreateUser"
	Code   string // the provider's, "" if there is none
	Text   string // the provider's words, cut to a bounded length; for administrators
	Err    error
}

func (e *Error) Error() string {
	if e.Code == "" {
		return e.Action + ": " + e.Text
	}
	return e.Action + ": " + e.Code + ": " + e.Text
}

func (e *Error) Unwrap() error { return e.Err }

// API is what a Client does. It lists the calls in one place, and lets tests inject faults between engine and Client; there is one implementation.
type API interface {
	Users
	Keys
	Sessions
}

// Users are those of IAM.
type Users interface {
	// GetUser returns a user, that of the credentials themselves for "".
	GetUser(ctx context.Context, name string) (User, error)
	// CreateUser creates a user. If a response was lost and the retry finds the user, the tags decide whether it is the one
	// requested: u.Tags should have a unique value. Exists is then a user that another client created, and Unavailable one
	// without tags to decide by.
	CreateUser(ctx context.Context, u NewUser) (User, error)
	AttachUserPolicy(ctx context.Context, user, policyARN string) error
	PutUserPolicy(ctx context.Context, user, name, document string) error
	AddUserToGroup(ctx context.Context, user, group string) error
	// RemoveUser removes a user with everything that keeps it from being removed: keys, policies, groups, login profile,
	// MFA devices, certificates, SSH keys, service credentials. What is not there counts as removed, also the user. What the
	// root credentials may not look at is passed over, and is the error only if the user cannot be removed for it.
	RemoveUser(ctx context.Context, name string) error
	// GroupPolicies returns the inline documents of a group and the ARNs of its attached policies.
	GroupPolicies(ctx context.Context, group string) (documents, arns []string, err error)
}

// Keys are the access keys of users.
type Keys interface {
	// CreateAccessKey creates a key of a user, of the credentials' own user for "". It is not retried when an attempt may
	// have created a key, because a second one would be created: after Unavailable there may be a key whose secret is lost,
	// and ListAccessKeys shows it.
	CreateAccessKey(ctx context.Context, user string) (Credentials, error)
	DeleteAccessKey(ctx context.Context, user, id string) error
	ListAccessKeys(ctx context.Context, user string) ([]Key, error) // the oldest first
}

// Sessions are temporary credentials, of STS.
type Sessions interface {
	AssumeRole(ctx context.Context, a AssumeRole) (Credentials, error)
	GetFederationToken(ctx context.Context, f Federation) (Credentials, error)
	GetSessionToken(ctx context.Context, ttl time.Duration, mfa MFA) (Credentials, error)
	// CallerIdentity returns the ARN of whom credentials are; of the client's own for the zero Credentials.
	CallerIdentity(ctx context.Context, c Credentials) (arn string, err error)
}
