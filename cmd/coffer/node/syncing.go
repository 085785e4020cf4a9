package node

import (
	"log/slog"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1ssm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv"
	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/gitlab"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes"
	"github.com/coffer-project/coffer/engines/secretsync/repohost"
	"github.com/coffer-project/coffer/engines/secretsync/webhook"
	"github.com/coffer-project/coffer/engines/secretsync/webhost"
	"github.com/coffer-project/coffer/server"
)

// newSync returns what makes secret sync, with all the types of destinations that there are.
func newSync(c config.Sync, log *slog.Logger) func(engines.Host) server.SecretSync {
	operator := connection.Operator{AllowPrivate: c.AllowPrivate, NoAliases: c.NoVendorTypeNames, EnvironmentCredentials: c.EnvironmentCredentials, Endpoints: map[string]connection.Endpoint{}}
	for kind, e := range c.Endpoints {
		operator.Endpoints[kind] = connection.Endpoint(e)
	}
	return func(h engines.Host) server.SecretSync {
		return secretsync.New(secretsync.Options{
			Host: h, Logger: log, Operator: operator,
			Types: []destination.Type{cloud1sm.Type, cloud1ssm.Type, cloud2kv.Type, cloud3sm.Type, gitlab.Type, kubernetes.Type, repohost.Type, webhook.Type, webhost.Type},
		})
	}
}
