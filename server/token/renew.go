package token

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Terms govern how long a token lives after it is created or renewed.
type Terms struct {
	TTL          time.Duration // 0: the default
	MaxTTL       time.Duration // counted from the creation; 0: the system's
	Period       time.Duration // see Params
	DefaultTTL   time.Duration // see Params
	SystemMaxTTL time.Duration
}

// maxLifetime keeps times of expiry within what the expiry index can order.
const maxLifetime = 100 * 365 * 24 * time.Hour

// lifetime returns how long a token lives from now on; 0 or less when its maximum is reached. increment is
// what the client asks for, 0 for nothing in particular.
func (s *Store) lifetime(t Terms, explicitMax, increment time.Duration, created, now time.Time) (ttl time.Duration, warnings []string) {
	most := t.SystemMaxTTL
	if most == 0 {
		most = s.opts.MaxTTL
	}
	most = min(most, maxLifetime)
	for _, limit := range []time.Duration{t.MaxTTL, explicitMax} {
		if limit > 0 {
			most = min(most, limit)
		}
	}
	switch {
	case t.Period > 0:
		if ttl = t.Period; ttl > most {
			warnings = append(warnings, fmt.Sprintf("period of %q exceeded the effective max_ttl of %q; period value is capped accordingly", ttl, most))
			ttl = most
		}
		if explicitMax == 0 {
			return ttl, warnings
		}
		most = explicitMax
	case increment > 0:
		ttl = increment
	case t.TTL > 0:
		ttl = t.TTL
	case t.DefaultTTL > 0:
		ttl = t.DefaultTTL
	default:
		ttl = s.opts.DefaultTTL
	}
	if left := created.Add(most).Sub(now); ttl > left {
		warnings = append(warnings, fmt.Sprintf("TTL of %q exceeded the effective max_ttl of %q; TTL value is capped accordingly", ttl, left))
		ttl = left
	}
	return ttl, warnings
}

// TermsOf returns the terms that an auth mount and the fields of its role set.
func TermsOf(m engines.Mount, f engines.TokenFields) Terms {
	return Terms{
		TTL: time.Duration(f.TokenTTL), MaxTTL: time.Duration(f.TokenMaxTTL), Period: time.Duration(f.TokenPeriod),
		DefaultTTL: m.DefaultLeaseTTL, SystemMaxTTL: m.MaxLeaseTTL,
	}
}

// Renew gives a token its next lifetime, counted from now; increment is what the client asks for, 0 for
// nothing in particular. ErrInvalid means that there is no such valid token; a token that cannot be renewed
// is an engines.Error of KindInvalid.
func (s *Store) Renew(ctx context.Context, key string, increment time.Duration) (Created, error) {
	return s.RenewWithin(ctx, key, increment, Terms{})
}

// RenewWithin is Renew. Tokens of the auth/token mount keep within that mount's limits, which are all that limits
// says.
func (s *Store) RenewWithin(ctx context.Context, key string, increment time.Duration, limits Terms) (Created, error) {
	if IsBatchKey(key) {
		return Created{}, engines.Invalid("batch tokens cannot be renewed")
	}
	current, err := s.LookupKey(ctx, key)
	if err != nil {
		return Created{}, err
	}
	if !current.Renewable || current.NumUses < 0 {
		return Created{}, errNotRenewable
	}
	terms, err := s.terms(ctx, current, limits)
	if err != nil {
		return Created{}, err
	}
	var warnings []string
	e, err := s.change(ctx, key, func(e *Entry) error {
		now := s.now().Round(0)
		switch {
		case !e.Valid(now):
			return ErrInvalid
		case !e.Renewable || e.NumUses < 0:
			return errNotRenewable
		}
		var ttl time.Duration
		if ttl, warnings = s.lifetime(terms, e.ExplicitMaxTTL, increment, e.CreatedAt, now); ttl <= 0 {
			return engines.Invalid("past the max TTL, cannot renew")
		}
		e.ExpiresAt, e.RenewedAt = now.Add(ttl), now
		return nil
	})
	return Created{Entry: e, Warnings: warnings}, err
}

var errNotRenewable = engines.Invalid("token is not renewable")

// terms returns what governs the token's renewal now.
func (s *Store) terms(ctx context.Context, e *Entry, limits Terms) (Terms, error) {
	switch {
	case e.Mount != "" && s.opts.Logins != nil:
		return s.opts.Logins.RenewTerms(ctx, e)
	case e.Mount != "":
		limits = Terms{}
	}
	t := Terms{TTL: e.TTL, MaxTTL: e.MaxTTL, Period: e.Period, DefaultTTL: limits.DefaultTTL, SystemMaxTTL: limits.SystemMaxTTL}
	if e.Mount != "" || e.Role == "" {
		return t, nil
	}
	r, err := s.roles.Get(ctx, e.Namespace, e.Role)
	if errors.Is(err, storage.ErrNotFound) {
		return t, engines.Invalid("the token role that made this token no longer exists: the token cannot be renewed")
	}
	if err != nil {
		return t, err
	}
	if !r.Renewable {
		return t, engines.Invalid("the token role that made this token no longer lets its tokens be renewed")
	}
	t.Period = r.PeriodOf(e.AskedPeriod)
	return t, nil
}
