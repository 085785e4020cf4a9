// Package destination is the contract between secret sync and the destinations that secrets are synced to.
//
// A destination has names, and under each name at most one value. What secret sync asks of a destination is small: look at a name,
// write it, delete it, list what is there, and say whether all that would work. Each type of destination is a package of its own
// that fills in a Type; package desttest is what every one of them must pass.
//
// The decisions are made above, by what Read found: whether a name is ours, whether it has to be written at all, when and
// how often. A Destination does what it is told or fails, with an *Error that says whose fault it is. It never repeats a
// call on its own, so that what is counted against the destination's rate is what is asked for here. The one thing it must see to
// itself is that a write after Absent creates or fails with Exists: it never replaces what another client made meanwhile,
// as far as the destination has a call for that.
package destination

import (
	"context"
	"crypto/rsa"
	"crypto/tls"
	"iter"
	"net"
	"net/http"
	"time"
)

// Mask is what reads answer in place of a sensitive value. Written back, it keeps what is stored.
const Mask = "*****"

// Type is one type of destination. All types are known to package secretsync, which declares an endpoint for each.
type Type struct {
	Name string // as in paths: "cloud1-sm"
	// Alias is the vendor's name of the type, which is accepted wherever Name is, unless the operator turns that off; "": none.
	Alias string
	Help  string // one sentence
	Rules Rules
	// New returns an empty configuration: a pointer to a struct with the tags of engines.On.
	New func() Config
	// Open makes a Destination. It makes no call. The configuration has passed Check.
	Open func(c Config, env Env) (Destination, error)
}

// Config is what a destination is configured with: a pointer to a struct whose fields carry the tags of engines.On, those of
// type engines.Sensitive being secret. Package secretsync decodes, merges and stores it field by field, so that a type of destination
// has nothing to do with that; the Mask written back keeps what is stored.
type Config interface {
	// Check returns everything that is wrong with the configuration as a whole, each text naming the field and saying what
	// to change, never a value that is secret. It also puts what was given into its usual form.
	Check() (problems []string)
	// Location names the set of names that the destination writes to, without any secret: two destinations with the same Location
	// share them. Letters that do not matter are folded.
	Location() string
	// Shown is the configuration as reads answer it, by field name: sensitive values as Mask, and left out if not set.
	Shown() map[string]any
}

// Owned is a Config whose location may have another owner when a field is changed. A request that changes it must give the credentials,
// too: those that are stored are not used for another owner's location.
type Owned interface {
	// Owner says whose the destination is, by what is not secret.
	Owner() string
}

// Applied is a Config with fields that count for what was written before, such as the key that secrets are encrypted with.
type Applied interface {
	// Applied returns a text that differs if those fields do, "" if none is set. When it changes, Write is called for every name once
	// more, also where the value is right.
	Applied() string
}

// Fixed is a Config with fields that the vendor cannot change of what was written before, such as the regions that secrets are kept in.
// They are not changed while anything is associated.
type Fixed interface {
	// Fixed returns a text that differs if those fields do, and why they cannot be changed: what follows "because".
	Fixed() (text, why string)
}

// Ambiguous is a Config that may name a destination which others have by the same name, so that only credentials tell them apart. Those
// cannot be exchanged then while anything is associated.
type Ambiguous interface {
	// Ambiguous returns why, "" if the destination has a name of its own.
	Ambiguous() string
}

// Redeployable is a Config that may say how the programs of the destination are redeployed: they do not see changes before.
type Redeployable interface {
	// Redeploys names what redeploys them, without any secret; "": nothing does.
	Redeploys() string
}

// RedeploysBy returns what redeploys the programs of a destination, "" if nothing does.
func RedeploysBy(c Config) string {
	if r, ok := c.(Redeployable); ok {
		return r.Redeploys()
	}
	return ""
}

// Redeployer is a Destination of a Redeployable.
type Redeployer interface {
	// Redeploy has the programs be redeployed, once. An error with Unknown may have done it.
	Redeploy(ctx context.Context) error
}

// AppUser is a Config that signs in as an app whose key is stored in a record of its own, once for all destinations that name it.
type AppUser interface {
	// App returns the name of an app in the namespace of the destination; "": it signs in with what it has itself.
	App() string
}

// App is what an AppUser signs in with. Do not modify it.
type App struct {
	ID  int64
	URL string // the only installation that the key may be used at; "" for the vendor's own
	Key *rsa.PrivateKey
}

// Env is what the operator of the server, and not a caller of the API, decides about a destination.
type Env struct {
	// Client makes the calls. It goes only to addresses that the destination may reach, trusts the certificates that the
	// operator has said, and follows no redirect to another host.
	Client *http.Client
	// Dial is how Client connects, for protocols other than HTTP/1; TLS is the same trust.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	TLS  *tls.Config
	// URL, AuthorityURL and TokenURL replace the vendor's own addresses, for tests and for destinations on one's own premises; ""
	// leaves them.
	URL          string
	AuthorityURL string // cloud2-kv: who issues tokens
	TokenURL     string // cloud3-sm: who issues tokens
	// App is the app that the Config names; nil if it names none, or one that is not stored.
	App *App
	// Getenv reads the environment of the server, for what a configuration leaves out.
	Getenv func(name string) string
	// Metadata reaches the metadata service of this machine, which Client does not; nil: the operator does not let the destination use
	// credentials of the server's environment.
	Metadata *http.Client
	// IdentityToken returns a token of the server's issuer, whose subject has the type and the name of the destination; nil: there is no
	// issuer. An error that is an *Error is about the arguments.
	IdentityToken func(ctx context.Context, audience string, ttl time.Duration) (string, error)
}

// Rules are what a type of destination takes and what it can do. They are checked before any call.
type Rules struct {
	// Granularity is the default: SecretPath or SecretKey.
	Granularity string
	// Template is the default template of names.
	Template string
	// Normalise turns what a template gave into a legal name, or the nearest to one: letters that the destination has no room for
	// are replaced, always in the same way.
	Normalise func(name string) string
	// CheckName returns why a name is not legal, "" if it is. The text states the limit.
	CheckName func(name string) (problem string)
	// Fold returns a name in the form in which the destination compares names; nil: as they are.
	Fold     func(name string) string
	MinValue int // fewest bytes of a value
	MaxValue int // most bytes of a value
	// CheckValue returns why the destination does not take a value of legal length, without a word of it; nil: it takes any.
	CheckValue func(value []byte) (problem string)
	MaxTotal   int // most bytes of all values together; 0: no limit of its own
	MaxNames   int // most names; 0: no limit of its own
	MaxTags    int // most tags besides the ownership tag; 0: there are none
	// CheckTag returns why a tag is not legal, "" if it is; nil where there are none.
	CheckTag func(key, value string) (problem string)
	// Marks says that Found.Mark tells whose a name is. Where it is false the sync state has to know by ID and Version.
	HasOwnerTags bool
	// WriteOnly says that names can neither be read nor listed, so that only the sync state has what is there. Read is not called,
	// and List yields nothing. Write and Delete get a Found of the sync state: OwnerTag is Item.OwnerTag if we own the name, and ""
	// if it is to be adopted.
	WriteOnly bool
	// Readable says that values can be read back.
	Readable bool
	// Settles is for how long after a write Read may go on telling that there is nothing; 0: it never does.
	PropagationDelay time.Duration
	// WritesPerDay is the most writes of one name in any 24 hours; 0: no limit. Close to it, writes of the name are further and further
	// apart: see plan.NextWrite.
	WritesPerDay int
	// Rate is how much may be asked of the destination by default.
	Rate Rate
}

// The granularities: one name for a secret, or one for each of its keys.
const (
	SecretPath = "secret-path"
	SecretKey  = "secret-key"
)

// Rate is a budget of calls.
type Rate struct {
	Writes      float64 // a second, long-term
	WriteBurst  int
	Reads       float64
	ReadBurst   int
	Concurrency int // calls at once
}

// State is what is under a name.
type State int

const (
	Absent  State = iota
	Present       // with a value
	Deleted       // deleted, but the name is not free: it can be recovered
)

// Found is what Read and List say of a name.
type Found struct {
	Name  string // as the destination writes it
	State State
	// OwnerTag is the ownership tag: Item.OwnerTag of the last write of ours; "" without one of ours.
	OwnerTag string
	// ID is the destination's own identity of what is under the name, which a new one of the same name would not have; "" if names
	// are all there is.
	ID string
	// Version changes with every write of any client.
	Version string
	// ChangedAt is when the last write was, as the destination tells it; zero if it does not.
	ChangedAt time.Time
	// Value is what is there, if Known. Only Read fills it.
	Value []byte
	Known bool
	// Handle is for the Destination: Write and Delete find in it what else Read learnt (an etag, for instance).
	Handle any
}

// Item is what Write puts under a name.
type Item struct {
	Name  string // legal
	Value []byte // not longer than MaxValue
	// Object says that Value is a whole secret: a JSON object with its keys.
	Object bool
	// Mark is put where Found.Mark finds it: up to 80 letters, digits and "-".
	OwnerTag string
	// Token is the same for every attempt to make this very write, and no other: 32 to 64 letters, digits and "-".
	Token string
	Tags  map[string]string
	// OldTags are tags that an earlier write of ours has set and that must go.
	OldTags []string
}

// Held is what a write left, to be recognised later.
type Held struct {
	ID      string
	Version string
}

// Destination is one configured location. Safe for concurrent use.
type Destination interface {
	// Read looks at a name. One that is not there is a Found with State Absent and no error.
	Read(ctx context.Context, name string) (Found, error)
	// Write puts an Item under its name. was is what Read has found there just now:
	//  - Absent: the name is created. If it is there all the same, the error has Code Exists.
	//  - Present: the value is replaced. If it is not was.ID any more, or was.Version where the destination has a call for that, the
	//    error has Code Changed.
	//  - Deleted: it is recovered, then its value replaced.
	// An error with Unknown may have written, or a part of it.
	Write(ctx context.Context, it Item, was Found) (Held, error)
	// Delete removes what Read has found. One that has gone meanwhile is fine; one that has been changed since is left alone,
	// and the error has Code Changed.
	Delete(ctx context.Context, was Found) error
	// List goes through all names that can be listed at little cost, with their ownership tags and versions where the listing has
	// them, and without values. Names of another client are among them. It stops after the first error.
	List(ctx context.Context) iter.Seq2[Found, error]
	// Verify tries out, without leaving anything behind, whether the destination can be reached, lets us in, and allows what is
	// needed. It returns what it tried, in order.
	Verify(ctx context.Context) []Check
	// Close releases connections, those of Env.Client too, which is not shared.
	Close() error
}

// Check is one thing that Verify tried.
type Check struct {
	Name string // "reachable", "credentials", "create", "write", "read", "delete", "tags", "clock", "expiry"
	OK   bool
	// Unknown says that it could not be tried without writing.
	Unknown bool
	Text    string // what was seen, and what to do; never a secret
}

// Class says whose fault a failure is, and so which status a client sees.
type Class string

const (
	Client   Class = "client"   // configuration, privileges, limits: an operator has to change something
	External Class = "external" // the destination has trouble, or too many requests: it is tried again
	Internal Class = "internal" // ours
)

// The codes of errors.
const (
	Denied      = "access_denied" // credentials are rejected, or do not suffice
	Throttled   = "throttled"
	Unreachable = "unreachable" // no response: resolving, connecting, TLS, time
	Unavailable = "unavailable" // a response of 5xx
	NoLocation  = "no_such_place"
	BadRequest  = "invalid" // the destination does not take the request
	TooLarge    = "too_large"
	Quota       = "quota" // the destination is full
	Exists      = "exists"
	Changed     = "changed"
	Blocked     = "blocked"     // the address is not one that may be called
	Unexpected  = "unexpected"  // an unexpected response
	Recovering  = "in_progress" // the destination is still deleting or recovering the name
)

// Error is a failed call.
type Error struct {
	Class Class
	Code  string
	// Text is for people. It holds no value, no credential, and nothing of a request's body.
	Text string
	// RetryAfter is how long the destination wants to be left alone; 0: it did not say.
	RetryAfter time.Duration
	// Unknown says that the call may have taken effect.
	Unknown bool
	Err     error // for errors.Is; never shown
}

func (e *Error) Error() string { return e.Text }

func (e *Error) Unwrap() error { return e.Err }
