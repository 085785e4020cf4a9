package mfa

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/storage"
)

// Requirement is what a login still needs. As JSON it is the mfa_requirement of an answer.
type Requirement struct {
	RequestID string `json:"mfa_request_id"`
	// Constraints must all be satisfied, each by a code of any of its methods. They have the enforcements' names.
	Constraints map[string]Constraint `json:"mfa_constraints"`

	entityID string
}

// Constraint is satisfied by a code of any of the methods.
type Constraint struct {
	Any []Method `json:"any"`
}

// Method is what a client needs to know to ask a user for a code.
type Method struct {
	Type         string `json:"type"`
	ID           string `json:"id"`
	UsesPasscode bool   `json:"uses_passcode"`
	Name         string `json:"name,omitempty"`
}

// Required returns what a login through the mount by the entity needs besides, or nil if nothing. A login without an
// entity that needs a code is denied: no user can have a secret for it.
func (s *Store) Required(ctx context.Context, m engines.Mount, entityID string) (*Requirement, error) {
	ns := namespace(m)
	r := &Requirement{Constraints: map[string]Constraint{}, entityID: entityID}
	var e *identity.Entity
	for _, in := range append([]string{ns}, s.opts.Namespaces.Above(ctx, ns)...) {
		all, err := s.enforcements(ctx, in)
		if err != nil {
			return nil, err
		}
		if len(all) > 0 && e == nil {
			if e, err = s.person(ctx, entityID); err != nil {
				return nil, err
			}
			r.entityID = e.ID
		}
		for _, f := range all {
			if concerned, err := s.concerns(ctx, f, m, *e); err != nil {
				return nil, err
			} else if !concerned {
				continue
			}
			if r.Constraints[s.constraintName(in, ns, f)], err = s.constraint(ctx, f); err != nil {
				return nil, err
			}
		}
	}
	switch {
	case len(r.Constraints) == 0:
		return nil, nil
	case entityID == "":
		return nil, engines.Denied(errors.New("the login needs a second factor but has no entity"))
	}
	r.RequestID = uuid.NewString()
	return r, nil
}

func (s *Store) person(ctx context.Context, id string) (*identity.Entity, error) {
	if id == "" {
		return &identity.Entity{}, nil
	}
	e, err := s.enabled(ctx, id)
	if missing(err) {
		return nil, engines.Denied(errors.New("the entity of the login is gone"))
	}
	return &e, err
}

// constraintName keeps apart enforcements of the same name in a namespace and above it.
func (s *Store) constraintName(in, ns string, f *enforcement) string {
	if in == ns {
		return f.Name
	}
	return "/" + s.opts.Namespaces.Path(in) + f.Name
}

func (s *Store) constraint(ctx context.Context, f *enforcement) (Constraint, error) {
	var c Constraint
	for _, id := range f.Methods {
		m, err := get[method](ctx, s.store, methodKey(id))
		if missing(err) {
			continue // an unusable method makes the constraint harder, not easier
		}
		if err != nil {
			return c, err
		}
		c.Any = append(c.Any, Method{Type: "totp", ID: m.ID, UsesPasscode: true, Name: m.Name})
	}
	return c, nil
}

// pending is a login that waits for its codes.
type pending struct {
	EntityID    string                `json:"entity_id"`
	Constraints map[string]Constraint `json:"constraints"`
	Data        []byte                `json:"data"`
	ExpiresAt   time.Time             `json:"expires_at"`
}

const pendingPrefix storage.Key = "l/mfa/pending/"

// pendingKey does not show the id: who has it may redeem the login, with a code.
func pendingKey(id string) storage.Key {
	sum := sha256.Sum256([]byte(id))
	return pendingPrefix + storage.Key(hex.EncodeToString(sum[:]))
}

// Hold keeps a login for five minutes, in whatever form the caller likes, and returns the id that Take wants: that of
// the requirement.
func (s *Store) Hold(ctx context.Context, r *Requirement, login []byte) (id string, err error) {
	err = s.update(ctx, func(t *storage.Txn) error {
		put(t, pendingKey(r.RequestID), &pending{
			EntityID: r.entityID, Constraints: r.Constraints, Data: login, ExpiresAt: time.Now().UTC().Add(holdTime),
		})
		return nil
	})
	return r.RequestID, err
}

// Take returns a held login if the codes satisfy all of its constraints, and ends it: it is redeemed once. codes are
// by method, id or name. Wrong ones are an engines.Error of KindDenied, and the login can be tried again; an id that
// means nothing (any more) is one of KindInvalid.
func (s *Store) Take(ctx context.Context, id string, codes map[string][]string) (login []byte, err error) {
	var failed error
	err = s.update(ctx, func(t *storage.Txn) error {
		login, failed = nil, nil
		k := pendingKey(id)
		p, err := get[pending](ctx, t, k)
		if missing(err) || err == nil && !time.Now().Before(p.ExpiresAt) {
			return engines.Invalid(`field "mfa_request_id": no login waits under this id: it has been redeemed, or it was longer ago than %v`, holdTime)
		}
		if err != nil {
			return err
		}
		if failed, err = s.verify(ctx, t, p.EntityID, p.Constraints, codes); err != nil || failed != nil {
			return err
		}
		login = p.Data
		t.Delete(k)
		return nil
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	return login, nil
}

// Check is Take for a login that comes with its codes: header holds the values of X-Vault-MFA, each
// "<method id or name>:<code>". Nothing needs to be held.
func (s *Store) Check(ctx context.Context, r *Requirement, header []string) error {
	codes := map[string][]string{}
	for _, value := range header {
		name, code, ok := strings.Cut(value, ":")
		if !ok || code == "" {
			return engines.Invalid("header X-Vault-MFA: must be a method's id or name, a colon, and a code")
		}
		codes[name] = append(codes[name], strings.TrimPrefix(code, "passcode="))
	}
	var failed error
	err := s.update(ctx, func(t *storage.Txn) (err error) {
		failed, err = s.verify(ctx, t, r.entityID, r.Constraints, codes)
		return err
	})
	if err != nil {
		return err
	}
	return failed
}

// verify tries the codes of one login. failed is what is wrong with them; then only the count of wrong codes is
// written. A code counts for every constraint that has its method.
func (s *Store) verify(ctx context.Context, t *storage.Txn, entityID string, constraints map[string]Constraint, codes map[string][]string) (failed, err error) {
	v := verification{s: s, t: t, entity: entityID, codes: codes, tried: map[string]error{}, accepted: map[string]*attempts{}}
	for _, name := range slices.Sorted(maps.Keys(constraints)) {
		why, err := v.satisfy(ctx, constraints[name])
		if err != nil {
			return nil, err
		}
		if why != nil && failed == nil {
			failed = denied("login MFA validation failed for %q: %v", name, why)
		}
	}
	if failed != nil {
		return failed, nil
	}
	for id, a := range v.accepted {
		put(t, attemptsKey(id, entityID), a)
	}
	return nil, nil
}

func denied(format string, args ...any) error {
	return &engines.Error{Kind: engines.KindDenied, Detail: fmt.Sprintf(format, args...)}
}

// attempts is what is remembered of an entity's codes of one method.
type attempts struct {
	// Used is when the period of the last accepted code began, in seconds since 1970. It is no number of a period:
	// a secret that comes later may have longer ones.
	Used   int64     `json:"used"`
	Wrong  int       `json:"wrong,omitempty"`
	Before time.Time `json:"before,omitzero"` // when the wrong ones are forgotten
}

// verification is one attempt to satisfy constraints.
type verification struct {
	s        *Store
	t        *storage.Txn
	entity   string
	codes    map[string][]string
	tried    map[string]error // by method id: nil if its code was right
	accepted map[string]*attempts
}

// satisfy returns why none of the methods is satisfied, nil if one is.
func (v *verification) satisfy(ctx context.Context, c Constraint) (why, err error) {
	why = errors.New("no code of one of its methods was given")
	for _, m := range c.Any {
		codes := v.codes[m.ID]
		if len(codes) == 0 && m.Name != "" {
			codes = v.codes[m.Name]
		}
		if len(codes) == 0 {
			continue
		}
		problem, ok := v.tried[m.ID]
		if !ok {
			if problem, err = v.try(ctx, m.ID, codes); err != nil {
				return nil, err
			}
			v.tried[m.ID] = problem
		}
		if problem == nil {
			return nil, nil
		}
		why = problem
	}
	return why, nil
}

// try returns what is wrong with the code of a method, nil if nothing.
func (v *verification) try(ctx context.Context, id string, given []string) (problem, err error) {
	if len(given) != 1 {
		return errors.New("give one code of each method"), nil
	}
	m, err := get[method](ctx, v.s.store, methodKey(id))
	if missing(err) {
		return errors.New("the method is gone"), nil
	}
	if err != nil {
		return nil, err
	}
	c, err := get[secret](ctx, v.s.store, secretKey(id, v.entity))
	if missing(err) {
		return errors.New("the entity has no secret of the method yet: have one generated"), nil
	}
	if err != nil {
		return nil, err
	}
	a, err := get[attempts](ctx, v.t, attemptsKey(id, v.entity))
	if missing(err) {
		a, err = &attempts{}, nil
	}
	if err != nil {
		return nil, err
	}
	return v.judge(m, c, a, given[0])
}

// judge compares a code. Wrong ones are counted in the transaction, also when it does nothing else.
func (v *verification) judge(m *method, c *secret, a *attempts, given string) (problem, err error) {
	now := time.Now().UTC()
	if !now.Before(a.Before) {
		a.Wrong, a.Before = 0, now.Add(attemptWindow)
	}
	if a.Wrong >= m.MaxAttempts {
		return fmt.Errorf("too many wrong codes: try again in %v", a.Before.Sub(now).Round(time.Second)), nil
	}
	began, err := c.match(given, now)
	switch {
	case err != nil:
		return nil, errors.New("reading the secret of an entity: it is not base32")
	case began == 0:
		a.Wrong++
		put(v.t, attemptsKey(m.ID, v.entity), a)
		return errors.New("the code is wrong"), nil
	case began <= a.Used:
		return errors.New("the code has been used already: wait for the next one"), nil
	}
	v.accepted[m.ID] = &attempts{Used: began}
	return nil, nil
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// Sweep removes held logins that were not redeemed in time.
func (s *Store) Sweep(ctx context.Context) error {
	const page = 256
	for after := storage.Key(""); ; {
		entries, err := s.store.Scan(ctx, pendingPrefix, after, page)
		if err != nil || len(entries) == 0 {
			return err
		}
		var b storage.Batch
		for _, e := range entries {
			p, err := decode[pending](e)
			if err != nil {
				return err
			}
			if !time.Now().Before(p.ExpiresAt) {
				b.Deletes = append(b.Deletes, e.Key)
			}
		}
		if !b.Empty() {
			if _, err := s.store.Commit(ctx, b); err != nil {
				return err
			}
		}
		after = entries[len(entries)-1].Key
	}
}
