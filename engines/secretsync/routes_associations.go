package secretsync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

func (s *Service) associationRoutes(r *engines.Router) {
	const of = "sync/destinations/{type}/{destination}/associations"
	engines.On(r, engines.Read, of, "The associations of a destination, with the state of every secret.", flags, s.readAssociations)
	engines.On(r, engines.Update, of+"/set", "Associate a secret, or all below a prefix, with a destination; or sync it again.", flags, s.setAssociation)
	engines.On(r, engines.Update, of+"/remove", "Remove an association, with what was synced.", flags, s.removeAssociation)
	engines.On(r, engines.List, "sync/associations", "All associated secrets, by mount.", flags, s.listAssociations)
	engines.On(r, engines.Read, "sync/associations/destinations", "The destinations of a secret.", flags, s.destinationsOf)
	engines.On(r, engines.Read, "sync/associations/{mount}/{secret_name...}", "The destinations of a secret.", flags, s.destinationsOf)
}

// ofIn names a destination where "name" is something else.
type ofIn struct {
	Type        string `json:"type" max:"64" help:"Type of the destination."`
	Destination string `json:"destination" max:"128" help:"Name of the destination."`
}

// secretIn names what is associated. name is the word that the interface uses when an association is removed.
type secretIn struct {
	ofIn
	Mount      string `json:"mount" max:"512" help:"Mount that holds the secret: its path, or its accessor."`
	Name       string `json:"name" max:"512" help:"Another word for secret_name."`
	SecretName string `json:"secret_name" max:"512" help:"Name of the secret, without a leading slash."`
	Prefix     string `json:"secret_prefix" max:"512" help:"In place of secret_name: all secrets whose names begin so, also those to come; * for all of the mount."`
}

// setIn is an association.
type setIn struct {
	secretIn
	Granularity string             `json:"granularity" help:"In place of the destination's: secret-path or secret-key."`
	Template    string             `json:"secret_name_template" max:"4096" help:"In place of the destination's."`
	Format      string             `json:"format" help:"json or raw; json for whole secrets and raw for keys, without it."`
	Include     engines.StringList `json:"include" max:"200" help:"Only these keys of the secret; * stands for any text."`
	Exclude     engines.StringList `json:"exclude" max:"200" help:"Not these keys."`
	Deletion    string             `json:"deletion_policy" default:"delete" enum:"delete,retain" help:"What becomes of what was synced when the secret, or the association, goes."`
	Drift       string             `json:"drift_policy" default:"report" enum:"report,repair,ignore" help:"What becomes of changes that somebody else makes at the destination to what is ours."`
}

// chosen is what a request names.
type chosen struct {
	dest     *destinationRecord
	mount    *engines.Mounted
	source   engines.SecretSource
	secret   string
	selector bool
}

func (c *chosen) id() string { return associationID(c.dest.ID, c.mount.UUID, c.secret, c.selector) }

func (c *chosen) key() storage.Key { return associationKey(c.dest.NS, c.dest.ID, c.id()) }

// choose finds what a request names.
func (s *Service) choose(ctx context.Context, req *engines.Request, in *secretIn) (*chosen, error) {
	c := new(chosen)
	var err error
	if c.dest, err = s.get(ctx, s.host.Store(), req.Mount.NamespaceID, in.Type, in.Destination); err != nil {
		return nil, err
	}
	name := cmp.Or(in.SecretName, in.Name)
	switch {
	case in.Name != "" && in.Name != name:
		return nil, engines.Invalid(`fields "name" and "secret_name" are two words for one thing, and differ`)
	case in.Mount == "":
		return nil, engines.Invalid(`field "mount" is required: the mount that holds the secret`)
	case name == "" && in.Prefix == "":
		return nil, engines.Invalid(`field "secret_name" is required: the name of the secret, or secret_prefix for several`)
	case name != "" && in.Prefix != "":
		return nil, engines.Invalid(`fields "secret_name" and "secret_prefix" exclude each other`)
	}
	c.secret, c.selector = cmp.Or(name, in.Prefix), in.Prefix != ""
	if in.Prefix == "*" {
		c.secret = ""
	}
	if problem := checkSecretName(c.secret, c.selector); problem != "" {
		return nil, engines.Invalid("%s", problem)
	}
	if c.mount, c.source, err = s.sourceAt(ctx, req.Mount.NamespaceID, in.Mount); err != nil {
		return nil, err
	}
	return c, nil
}

func checkSecretName(name string, selector bool) string {
	switch {
	case strings.HasPrefix(name, "/"):
		return `field "secret_name": has a leading slash; leave it out`
	case strings.HasSuffix(name, "/") && !selector:
		return `field "secret_name": ends in a slash, which is a folder: give the full path of a secret, or use secret_prefix for all below it`
	case strings.Contains(name, "//") || strings.ContainsAny(name, "\x00") || len(name) > 512:
		return `field "secret_name": is not the name of a secret`
	}
	for _, segment := range strings.Split(name, "/") {
		if segment == "." || segment == ".." {
			return `field "secret_name": is not the name of a secret`
		}
	}
	return ""
}

// sourceAt returns the KV version 2 mount at a path of a namespace, or with an accessor.
func (s *Service) sourceAt(ctx context.Context, ns, path string) (*engines.Mounted, engines.SecretSource, error) {
	m, err := s.host.MountAt(ctx, ns, path)
	if err != nil {
		return nil, nil, err
	}
	if m == nil {
		return nil, nil, engines.Invalid(`field "mount": there is no mount at %q in this namespace`, path)
	}
	source, ok := m.Engine.(engines.SecretSource)
	if !ok {
		return nil, nil, engines.Invalid(`field "mount": %q is not a KV version 2 engine: only its secrets can be synced`, path)
	}
	return m, source, nil
}

// setAssociation makes an association, or refreshes the one that there is, and waits a while for the first sync.
func (s *Service) setAssociation(ctx context.Context, req *engines.Request, in *setIn) (*engines.Response, error) {
	c, err := s.choose(ctx, req, &in.secretIn)
	if err != nil {
		return nil, err
	}
	if err := s.checkReadable(ctx, req, c); err != nil {
		return nil, err
	}
	a, err := s.build(req, c, in)
	if err != nil {
		return nil, err
	}
	if err := s.putAssociation(ctx, c, a); err != nil {
		return nil, err
	}
	s.watch(a)
	var warnings []string
	if c.selector {
		err = s.scanAssociation(ctx, a)
		warnings = append(warnings, "the secrets below the prefix are synced in the background: read the associations to see how far it is")
	} else {
		s.syncNow(ctx, jobKey{a.NS, a.Destination, a.ID, a.Secret})
	}
	if err != nil {
		return nil, err
	}
	resp, err := s.answerAssociations(ctx, c.dest, a)
	if err == nil {
		resp.Warnings = warnings
	}
	return resp, err
}

// checkReadable holds the caller to what they may read themselves, and the secret to being there.
func (s *Service) checkReadable(ctx context.Context, req *engines.Request, c *chosen) error {
	denied := engines.Denied(errors.New("the caller cannot read what is to be associated"))
	denied.Detail = fmt.Sprintf("permission denied: to sync a secret one must be able to read it: %q of mount %q", c.secret, c.mount.Path)
	path := c.mount.Path + c.source.ReadPath(c.secret)
	if c.selector {
		if !req.Caller.Access.Allowed(engines.Read, path) && !req.Caller.Access.AnyUnder(path) {
			return denied
		}
		return nil
	}
	if !req.Caller.Access.Allowed(engines.Read, path) {
		return denied
	}
	secret, err := c.source.LatestSecret(ctx, c.mount.Mount, c.secret)
	if err != nil {
		return err
	}
	if secret.Version == 0 {
		return engines.NotFound(fmt.Sprintf("there is no secret %q in mount %q", c.secret, c.mount.Path))
	}
	return nil
}

// build makes the record of an association.
func (s *Service) build(req *engines.Request, c *chosen, in *setIn) (*associationRecord, error) {
	now := time.Now().UTC()
	rules := s.types[c.dest.Type].Rules
	a := &associationRecord{
		ID: c.id(), Destination: c.dest.ID, Type: c.dest.Type, Name: c.dest.Name, NS: c.dest.NS,
		MountUUID: c.mount.UUID, Accessor: c.mount.Accessor, MountPath: c.mount.Path, Secret: c.secret, Selector: c.selector,
		Granularity: cmp.Or(in.Granularity, c.dest.Granularity, rules.Granularity), Template: cmp.Or(in.Template, c.dest.Template),
		ValueFormat: in.Format, Include: in.Include, Exclude: in.Exclude, Deletion: in.Deletion, Drift: in.Drift,
		Owner: engines.PrincipalOf(req.Caller), CreatedAt: now, UpdatedAt: now,
	}
	if problems := a.plan(rules).Check(); len(problems) > 0 {
		return nil, engines.Invalid("%s", strings.Join(problems, "; "))
	}
	return a, nil
}

// putAssociation stores an association, and a link that says that it is pending, so that both are there for whoever reads them
// next.
func (s *Service) putAssociation(ctx context.Context, c *chosen, a *associationRecord) error {
	config, err := s.config(ctx)
	if err != nil {
		return err
	}
	if n := s.associated(); n >= config.QueueCapacity {
		return engines.Invalid("there are %d associations, and queue_capacity of sync/config allows %d", n, config.QueueCapacity)
	}
	_, err = storage.Update(ctx, s.host.Store(), func(tx *storage.Txn) error {
		var d destinationRecord
		if _, err := getDestination(ctx, tx, c.dest.key(), &d); err != nil {
			return err
		}
		switch {
		case d.ID != c.dest.ID:
			return engines.NotFound("")
		case !d.PurgeAt.IsZero():
			return engines.Invalid("the destination is being purged")
		}
		var had associationRecord
		found, err := engines.GetRecord(ctx, tx, a.key(), &had)
		if err != nil {
			return err
		}
		if found {
			a.CreatedAt, a.Paused = had.CreatedAt, had.Paused
		}
		if !a.Selector {
			if err := s.putPending(ctx, tx, a); err != nil {
				return err
			}
		}
		return engines.PutRecord(tx, a.key(), a)
	})
	return err
}

// putPending stores a link for an association that has none.
func (s *Service) putPending(ctx context.Context, tx *storage.Txn, a *associationRecord) error {
	key := linkKey(a.NS, a.Destination, a.ID, a.Secret)
	var l link
	found, err := engines.GetRecord(ctx, tx, key, &l)
	if found || err != nil {
		return err
	}
	l = link{Secret: a.Secret, outcome: outcome{Status: Pending}, UpdatedAt: a.UpdatedAt}
	return engines.PutRecord(tx, key, &l)
}

// patientFor is how long a request waits for a sync that it asked for.
const patientFor = 10 * time.Second

// syncNow syncs a link, looking at the destination in any case, and waits a while for it.
func (s *Service) syncNow(ctx context.Context, key jobKey) {
	done := make(chan struct{})
	s.queue.push(key, time.Time{}, true, done)
	timer := time.NewTimer(patientFor)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

type removeIn struct {
	secretIn
	Retain bool `json:"retain" help:"Leave what was synced where it is."`
}

// removeAssociation has what was synced removed, and waits a while for it.
func (s *Service) removeAssociation(ctx context.Context, req *engines.Request, in *removeIn) (*engines.Response, error) {
	c, err := s.choose(ctx, req, &in.secretIn)
	if err != nil {
		return nil, err
	}
	a := &associationRecord{}
	found := false
	_, err = storage.Update(ctx, s.host.Store(), func(tx *storage.Txn) error {
		var err error
		if found, err = engines.GetRecord(ctx, tx, c.key(), a); err != nil || !found {
			return err
		}
		a.Removing, a.Retain, a.Paused, a.UpdatedAt = true, in.Retain, false, time.Now().UTC()
		return engines.PutRecord(tx, a.key(), a)
	})
	if err != nil {
		return nil, err
	}
	if !found {
		return s.answerRemoved(c, true, nil)
	}
	if c.selector {
		if err := s.scanAssociation(ctx, a); err != nil {
			return nil, err
		}
		return s.answerRemoved(c, false, nil)
	}
	s.syncNow(ctx, jobKey{a.NS, a.Destination, a.ID, a.Secret})
	var l link
	left, err := engines.GetRecord(ctx, s.host.Store(), linkKey(a.NS, a.Destination, a.ID, a.Secret), &l)
	if err != nil {
		return nil, err
	}
	return s.answerRemoved(c, !left, &l)
}

// answerRemoved is what clients are told of an association that goes.
func (s *Service) answerRemoved(c *chosen, gone bool, l *link) (*engines.Response, error) {
	entry := map[string]any{
		"accessor": c.mount.Accessor, "mount": c.mount.Path, "secret_name": c.secret, "sub_key": "", "sync_status": Unsynced, "updated_at": time.Now().UTC(),
	}
	resp := &engines.Response{Data: map[string]any{
		"associated_secrets": map[string]any{c.mount.Accessor + "/" + c.secret: entry}, "store_name": c.dest.Name, "store_type": c.dest.Type,
	}}
	if gone {
		return resp, nil
	}
	entry["sync_status"] = Unsyncing
	if l != nil && l.Cause != "" {
		entry["cause"], entry["code"] = l.Cause, l.Code
	}
	resp.Warnings = []string{"what was synced is still being removed; the association goes when it is"}
	return resp, nil
}
