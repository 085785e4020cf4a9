package root

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
)

// maxClients bounds the clients kept at once: one for each way through roles that is in use.
const maxClients = 256

// Clients keeps the clients of one root configuration, by the roles that they go through. Safe for concurrent use.
type Clients struct {
	log   *slog.Logger
	mount engines.Mount
	// Dial makes a client. It is aws.New, unless a test has set another.
	Dial func(context.Context, aws.Options) (aws.API, error)

	mu      sync.Mutex
	of      [sha256.Size]byte // the configuration that they reach the provider by
	kept    map[string]aws.API
	account string    // of the root credentials, "" while it is not known
	askAt   time.Time // when to ask for it again
}

// NewClients returns the clients of one mount.
func NewClients(log *slog.Logger, m engines.Mount) *Clients {
	return &Clients{log: log, mount: m, Dial: dialAWS}
}

// API returns the provider as the root configuration reaches it, through the roles to assume first. The configuration is
// read each time, so a change needs no notification. Calls that use an earlier client continue.
func (c *Clients) API(ctx context.Context, m engines.Mount, through ...aws.AssumeRole) (aws.API, error) {
	r, _, err := Get(ctx, m.Storage)
	if err != nil {
		return nil, err
	}
	return c.For(ctx, r, through)
}

// Once returns a client of its own, which is not kept.
func (c *Clients) Once(ctx context.Context, r *Root) (aws.API, error) {
	return c.Dial(ctx, r.options(c.mount, nil))
}

// For is api for a configuration that has been read.
func (c *Clients) For(ctx context.Context, r *Root, through []aws.AssumeRole) (aws.API, error) {
	way, err := json.Marshal(through)
	if err != nil {
		return nil, err
	}
	of, err := r.fingerprint()
	if err != nil {
		return nil, err
	}
	if api := c.find(of, string(way)); api != nil {
		return api, nil
	}
	// Without the mutex: the SDK may look for a machine's region. Of two that are made at once, one is kept.
	api, err := c.Dial(ctx, r.options(c.mount, through))
	if err != nil {
		return nil, err
	}
	return c.keep(of, string(way), api), nil
}

func (c *Clients) find(of [sha256.Size]byte, way string) aws.API {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != of {
		return nil
	}
	return c.kept[way]
}

// keep returns the client that is to be used: api, or one that was kept meanwhile.
func (c *Clients) keep(of [sha256.Size]byte, way string, api aws.API) aws.API {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != of {
		c.of, c.kept, c.account, c.askAt = of, nil, "", time.Time{}
	}
	if kept, ok := c.kept[way]; ok {
		return kept
	}
	if len(c.kept) >= maxClients {
		for other := range c.kept { // any
			delete(c.kept, other)
			break
		}
	}
	if c.kept == nil {
		c.kept = map[string]aws.API{}
	}
	c.kept[way] = api
	return api
}

const (
	identityTime = 5 * time.Second // to ask for the account
	identityBack = time.Minute     // and until it is asked for again
)

// Account returns the account that api creates users in, "" if it is unknown. A user is looked up in that account only, because
// the root credentials may be replaced by those of another account meanwhile.
func (c *Clients) Account(ctx context.Context, r *Root, api aws.API, through []string) string {
	if n := len(through); n > 0 {
		return AccountOf(through[n-1])
	}
	of, err := r.fingerprint()
	if err != nil {
		return ""
	}
	c.mu.Lock()
	account, known := c.account, c.of == of && (c.account != "" || time.Now().Before(c.askAt))
	c.mu.Unlock()
	if known {
		return account
	}
	ctx, cancel := context.WithTimeout(ctx, identityTime)
	defer cancel()
	arn, err := api.CallerIdentity(ctx, aws.Credentials{})
	if err != nil {
		c.log.Debug("it is not known which account users are made in", "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == of {
		c.account, c.askAt = AccountOf(arn), time.Now().Add(identityBack)
	}
	return AccountOf(arn)
}

// fingerprint is of what a client is made of.
func (r *Root) fingerprint() ([sha256.Size]byte, error) {
	reach := Root{
		AccessKey: r.AccessKey, SecretKey: r.SecretKey, RoleARN: r.RoleARN, IdentityAudience: r.IdentityAudience, IdentityTTL: r.IdentityTTL, Region: r.Region, IAMEndpoint: r.IAMEndpoint,
		STSEndpoint: r.STSEndpoint, STSRegion: r.STSRegion, STSFallbacks: r.STSFallbacks, FallbackRegions: r.FallbackRegions,
		MaxRetries: r.MaxRetries,
	}
	text, err := json.Marshal(reach)
	return sha256.Sum256(text), err
}

func dialAWS(ctx context.Context, o aws.Options) (aws.API, error) {
	c, err := aws.New(ctx, o)
	if err != nil {
		return nil, err // and no *aws.Client that is nil
	}
	return c, nil
}

// AccountOf returns the account in an ARN, "" if there is none.
func AccountOf(arn string) string {
	parts := strings.SplitN(arn, ":", 6)
	if len(parts) < 6 {
		return ""
	}
	return parts[4]
}
