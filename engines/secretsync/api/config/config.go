// Package config serves sys/sync/config: the configuration of secret sync as a whole. Start reading at API.Routes.
package config

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/api"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/wire"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/engines/secretsync/webhook/signature"
	"github.com/coffer-project/coffer/storage"
)

// API serves the path sys/sync/config.
type API struct{ Store func() storage.Store }

const flags = engines.Primary | engines.Active | engines.RootNamespace

// Routes declares the path below sys/.
func (s *API) Routes(r *engines.Router) {
	const pattern = "sync/config"
	engines.On(r, engines.Read, pattern, "Read the configuration of secret sync.", flags, api.WithClientErrors(s.Read)).Returns(mountShape)
	engines.On(r, engines.Patch, pattern, "Change the configuration of secret sync; null goes back to the default.", flags|engines.Strict, api.WithClientErrors(s.write)).
		Returns(mountShape)
	engines.On(r, engines.Update, pattern, "Change the configuration of secret sync.", flags|engines.Strict, api.WithClientErrors(s.write)).
		Returns(`disabled: boolean, drift_interval: integer, notification_allowed_ipv4_addresses: [string], notification_allowed_ports:
			[string], notification_url, queue_capacity: integer`)
	engines.On(r, engines.Delete, pattern, "Go back to the defaults.", flags|engines.Strict, api.WithClientErrors(s.Reset)).
		Returns("disabled: boolean, drift_interval: integer, queue_capacity: integer")
}

// EmptyIn is the input of requests without fields.
type EmptyIn struct{}

type configIn struct {
	Disabled      bool             `json:"disabled" help:"Stop all syncing. What changes meanwhile is done when it goes on."`
	QueueCapacity int              `json:"queue_capacity" default:"1000000" help:"Most secrets that may be synced at once, counting each for each association. Below a prefix, more have to wait."`
	DriftInterval engines.Duration `json:"drift_interval" default:"1h" help:"How often destinations are checked for drift, a minute at least."`

	URL        string             `json:"notification_url" form:"trim" max:"500" help:"URL that is told of failures: https, without credentials and query. Empty: none is."`
	SigningKey engines.Sensitive  `json:"notification_signing_key" max:"1024" help:"Key of the signatures, which the receiver has, too: at least 16 bytes. Without it notifications are not signed."`
	IPv4       engines.StringList `json:"notification_allowed_ipv4_addresses" form:"network" max:"100" help:"Networks that the receiver may be in, private ones too, such as 10.1.0.0/16. Without any: all public ones."`
	IPv6       engines.StringList `json:"notification_allowed_ipv6_addresses" form:"network" max:"100" help:"Likewise."`
	Ports      engines.StringList `json:"notification_allowed_ports" max:"100" help:"Ports that the receiver may be at; 80 and 443 without any."`
}

const shortestDriftInterval = time.Minute

func response(c *state.Config) *engines.Response {
	out := map[string]any{"disabled": c.Disabled, "queue_capacity": c.QueueCapacity, "drift_interval": int(c.DriftIntervalOrDefault().Seconds())}
	n := &c.Notifications
	if n.URL != "" {
		out["notification_url"] = n.URL
	}
	if n.SigningKey != "" {
		out["notification_signing_key"] = destination.Mask
	}
	for name, list := range map[string][]string{"ipv4_addresses": n.Network.IPv4, "ipv6_addresses": n.Network.IPv6, "ports": n.Network.Ports} {
		if len(list) > 0 {
			out["notification_allowed_"+name] = list
		}
	}
	return &engines.Response{Data: out}
}

func defaults() state.Config { return state.Config{QueueCapacity: state.DefaultQueueCapacity} }

// Read answers the configuration.
func (s *API) Read(ctx context.Context, _ *engines.Request, _ *EmptyIn) (*engines.Response, error) {
	c := defaults()
	_, err := engines.GetRecord(ctx, s.Store(), state.ConfigKey, &c)
	return response(&c), err
}

func (s *API) write(ctx context.Context, req *engines.Request, in *configIn) (*engines.Response, error) {
	if in.QueueCapacity < 1 {
		return nil, engines.Invalid(`field "queue_capacity": must be at least 1`)
	}
	if time.Duration(in.DriftInterval) < shortestDriftInterval {
		return nil, engines.Invalid(`field "drift_interval": must be at least %v`, shortestDriftInterval)
	}
	given := func(field string) bool { return req.Given(field) || req.Null(field) }
	var c state.Config
	_, err := storage.Update(ctx, s.Store(), func(tx *storage.Txn) error {
		c = defaults()
		if _, err := engines.GetRecord(ctx, tx, state.ConfigKey, &c); err != nil {
			return err
		}
		if given("disabled") {
			c.Disabled = in.Disabled
		}
		if given("queue_capacity") {
			c.QueueCapacity = in.QueueCapacity
		}
		switch {
		case req.Null("drift_interval"):
			c.DriftInterval = 0
		case req.Given("drift_interval"):
			c.DriftInterval = time.Duration(in.DriftInterval)
		}
		if problem := in.setNotifications(&c.Notifications, given); problem != "" {
			return engines.Invalid("%s", problem)
		}
		return engines.PutRecord(tx, state.ConfigKey, &c)
	})
	return response(&c), err
}

// setNotifications changes the fields that were given, and returns what is wrong with the result.
func (in *configIn) setNotifications(n *state.Notifications, given func(field string) bool) (problem string) {
	const url, key = "notification_url", "notification_signing_key"
	if given(url) && in.URL == "" {
		if in.SigningKey != "" || len(in.IPv4)+len(in.IPv6)+len(in.Ports) > 0 {
			return fmt.Sprintf("field %q: is empty, which ends notifications: leave out the other fields that begin with notification_", url)
		}
		*n = state.Notifications{}
		return ""
	}
	before := *n
	if given(url) {
		n.URL = in.URL
	}
	if given(key) && in.SigningKey.Reveal() != destination.Mask {
		n.SigningKey = in.SigningKey.Reveal()
	}
	for field, change := range map[string]func(){
		"notification_allowed_ipv4_addresses": func() { n.Network.IPv4 = in.IPv4 },
		"notification_allowed_ipv6_addresses": func() { n.Network.IPv6 = in.IPv6 },
		"notification_allowed_ports":          func() { n.Network.Ports = in.Ports },
	} {
		if given(field) {
			change()
		}
	}
	if n.URL == "" {
		if n.SigningKey != "" || len(n.Network.IPv4)+len(n.Network.IPv6)+len(n.Network.Ports) > 0 {
			return fmt.Sprintf("field %q: is required with the other fields that begin with notification_", url)
		}
		return ""
	}
	if p := wire.URLProblem(n.URL); p != "" {
		return fmt.Sprintf("field %q: %s", url, p)
	}
	masked := in.SigningKey.Reveal() == destination.Mask
	if before.SigningKey != "" && wire.Location(before.URL) != wire.Location(n.URL) && (masked || !given(key)) {
		return fmt.Sprintf("field %q: give it, too, since the stored key is not used for another receiver; null is for none", key)
	}
	if masked && before.SigningKey == "" {
		return fmt.Sprintf("field %q: %s", key, wire.CredentialProblem(destination.Mask))
	}
	if n.SigningKey != "" {
		if p := wire.CredentialProblem(n.SigningKey); p != "" {
			return fmt.Sprintf("field %q: %s", key, p)
		}
		if len(n.SigningKey) < signature.MinKey {
			return fmt.Sprintf("field %q: must have at least %d bytes", key, signature.MinKey)
		}
	}
	if _, err := connection.NewGuard(&n.Network, false); err != nil {
		return strings.Replace(err.Error(), `field "`, `field "notification_`, 1)
	}
	return ""
}

// Reset goes back to the defaults.
func (s *API) Reset(ctx context.Context, _ *engines.Request, _ *EmptyIn) (*engines.Response, error) {
	if _, err := s.Store().Commit(ctx, storage.Batch{Deletes: []storage.Key{state.ConfigKey}}); err != nil {
		return nil, err
	}
	c := defaults()
	return response(&c), nil
}

// The shapes of responses that several routes have: see engines.Route.Returns.
const (
	mountShape = `disabled: boolean, drift_interval: integer, notification_allowed_ports: [string], notification_signing_key,
		notification_url, queue_capacity: integer`
)
