// Package settings turns the configuration and the variables of the environment into what a server is made of.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/config"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/device"
	"github.com/coffer-project/coffer/server/lifecycle/join"
	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/server/seal/awskms"
	"github.com/coffer-project/coffer/server/seal/azurekeyvault"
	"github.com/coffer-project/coffer/server/seal/gcpckms"
	"github.com/coffer-project/coffer/server/seal/transit"
)

// Load loads the configuration. What one file for all nodes cannot say is in variables, which win over it.
func Load(paths ...string) (*config.Config, error) {
	cfg, err := config.Load(paths...)
	if err != nil {
		return nil, err
	}
	return cfg, fromEnvironment(cfg)
}

// fromEnvironment takes what variables say, which wins over the files.
func fromEnvironment(c *config.Config) error {
	c.APIAddr = cmp.Or(local.Env("API_ADDR"), c.APIAddr)
	c.ClusterAddr = cmp.Or(local.Env("CLUSTER_ADDR"), c.ClusterAddr)
	c.Storage.NodeID = cmp.Or(local.Env("RAFT_NODE_ID"), c.Storage.NodeID)
	c.Storage.Path = cmp.Or(local.Env("RAFT_PATH"), c.Storage.Path)
	if local.Env("RAFT_RETRY_JOIN_AS_NON_VOTER") != "" {
		c.Storage.NonVoter = true
	}
	if v := local.Env("LOG_LEVEL"); v != "" {
		c.LogLevel = config.LogLevel(strings.ToLower(v))
	}
	if v := strings.ToLower(local.Env("LOG_FORMAT")); v != "" {
		format, ok := config.LogFormat(v)
		if !ok {
			return fmt.Errorf("the variable COFFER_LOG_FORMAT (or BAO_…, VAULT_…) must be text, standard or json, not %q", v)
		}
		c.LogFormat = format
	}
	if v := local.Env("UI"); v != "" {
		on, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("the variable COFFER_UI (or BAO_…, VAULT_…) must be true or false, not %q", v)
		}
		c.UI = on
	}
	return sealFromEnvironment(c)
}

// sealFromEnvironment takes the type of the seal from a variable, if no stanza has another one. Its settings are in the stanza or in
// the type's own variables.
func sealFromEnvironment(c *config.Config) error {
	kind := local.Env("SEAL_TYPE")
	switch {
	case kind == "" || kind == c.Seal.Type:
	case c.Seal.Type != "":
		return fmt.Errorf("the variable COFFER_SEAL_TYPE (or BAO_…, VAULT_…) says %q, the configuration seal %q: change one of them", kind, c.Seal.Type)
	case !slices.Contains(config.SealTypes, kind):
		return fmt.Errorf("the variable COFFER_SEAL_TYPE (or BAO_…, VAULT_…): there is no seal %q", kind)
	default:
		c.Seal = config.Seal{Type: kind, Values: map[string]string{}}
	}
	return nil
}

// OpenSeals builds the seals of the configuration, without asking any service: auto is the one to use, nil for Shamir,
// old the one to leave, nil for none.
func OpenSeals(c *config.Config, log *slog.Logger) (auto, old seal.Wrapper, err error) {
	if auto, err = openSeal(c.Seal, log); err != nil {
		return nil, nil, err
	}
	old, err = openSeal(c.OldSeal, log)
	return auto, old, err
}

func openSeal(s config.Seal, log *slog.Logger) (seal.Wrapper, error) {
	switch s.Type {
	case "":
		return nil, nil
	case seal.TypeShamir:
		if len(s.Values) > 0 {
			return nil, fmt.Errorf("seal %q has no settings", s.Type)
		}
		return nil, nil
	case seal.TypeStatic:
		return seal.NewStatic(s.Values)
	case seal.TypeTransit:
		return transit.New(s.Values, log)
	case seal.TypeAWSKMS:
		return awskms.New(s.Values)
	case seal.TypeGCPCKMS:
		return gcpckms.New(s.Values)
	case seal.TypeAzureKeyVault:
		return azurekeyvault.New(s.Values)
	}
	return nil, fmt.Errorf("there is no seal %q", s.Type)
}

// JoinTargets returns the nodes to join, with what their certificates are checked against.
func JoinTargets(s config.Storage) ([]join.Target, error) {
	var targets []join.Target
	for _, j := range s.RetryJoin {
		t := join.Target{
			LeaderAPIAddr: j.LeaderAPIAddr, ServerName: j.LeaderServerName, NonVoter: s.NonVoter,
			CACert: []byte(j.LeaderCACert), ClientCert: []byte(j.LeaderClientCert), ClientKey: []byte(j.LeaderClientKey),
		}
		for file, into := range map[string]*[]byte{
			j.LeaderCACertFile: &t.CACert, j.LeaderClientCertFile: &t.ClientCert, j.LeaderClientKeyFile: &t.ClientKey,
		} {
			if file == "" {
				continue
			}
			pem, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("retry_join: %w", err)
			}
			*into = pem
		}
		if _, err := t.Client(); err != nil {
			return nil, fmt.Errorf("retry_join %s: %w", j.LeaderAPIAddr, err)
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// Lockout returns what the operator says about lockouts: in the configuration, and in a variable that wins over it.
func Lockout(c *config.Config) (engines.LockoutDefaults, error) {
	out := engines.LockoutDefaults{ByType: c.UserLockout}
	if text := local.Env("DISABLE_USER_LOCKOUT"); text != "" {
		disabled, err := strconv.ParseBool(text)
		if err != nil {
			return out, errors.New("the variable COFFER_DISABLE_USER_LOCKOUT (or BAO_…, VAULT_…) must be true or false")
		}
		out.Disabled = &disabled
	}
	return out, nil
}

// AuditFiles says where audit devices may write: what the configuration names, or a directory beside the data.
func AuditFiles(c *config.Config) device.Files {
	if c.Audit.FileRoots != nil {
		return device.Files{Roots: c.Audit.FileRoots}
	}
	beside, err := filepath.Abs(c.Storage.Path + "-audit")
	if err != nil {
		return device.Files{} // without a working directory nothing is known to be beside
	}
	return device.Files{Roots: []string{beside}, MakeRoot: true}
}

// AuditDevices returns the devices of the configuration. Errors name the stanza.
func AuditDevices(c *config.Config) ([]device.Config, error) {
	var out []device.Config
	for _, a := range c.Audit.Devices {
		d := device.Config{Path: device.CleanPath(a.Path), Type: a.Type, Description: a.Description, Options: a.Options, Confined: true, Declared: true}
		files := AuditFiles(c)
		files.DataDir = c.Storage.Path
		opened, err := d.Open(files)
		if err != nil {
			return nil, fmt.Errorf("audit %q %q: %w", a.Type, a.Path, err)
		}
		if err := opened.Close(); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// UnauthenticatedMetrics reports whether metrics need no token.
func UnauthenticatedMetrics(c *config.Config) bool {
	for _, l := range c.Listeners {
		if l.UnauthMetricsAccess {
			return true
		}
	}
	return c.UnauthenticatedMetrics
}
