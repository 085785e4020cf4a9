package cloud

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

const leaseKey storage.Key = "config/lease"

// leaseTerms are the stored terms of credentials of users, as JSON.
type leaseTerms struct {
	Format int           `json:"format"` // 1
	Lease  time.Duration `json:"lease"`
	Max    time.Duration `json:"lease_max"`
}

func (l *leaseTerms) RecordFormat() *int { return &l.Format }

// getLease returns the terms in force: those of config/lease, by default those of the mount.
func getLease(ctx context.Context, s engines.Getter, m engines.Mount) (leaseTerms, error) {
	var l leaseTerms
	if found, err := engines.GetRecord(ctx, s, leaseKey, &l); found || err != nil {
		return l, err
	}
	return leaseTerms{Lease: m.DefaultLeaseTTL, Max: m.MaxLeaseTTL}, nil
}

func readLease(ctx context.Context, req *engines.Request, _ *none) (*engines.Response, error) {
	l, err := getLease(ctx, req.Mount.Storage, req.Mount)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"lease": l.Lease.String(), "lease_max": l.Max.String()}}, nil
}

type none struct{}

type leaseIn struct {
	Lease string `json:"lease" form:"duration" required:"true" max:"64" help:"How long credentials of users last before they are renewed, such as 30m. The largest unit is h."`
	Max   string `json:"lease_max" form:"duration" required:"true" max:"64" help:"How long they last at most, renewals included, such as 12h. The largest unit is h."`
}

func writeLease(ctx context.Context, req *engines.Request, in *leaseIn) (*engines.Response, error) {
	var l leaseTerms
	var p engines.Problems
	var errLease, errMax error
	if l.Lease, errLease = parseLease(in.Lease); errLease != nil {
		p.Add("lease", "%v", errLease)
	}
	if l.Max, errMax = parseLease(in.Max); errMax != nil {
		p.Add("lease_max", "%v", errMax)
	}
	if cmp.Or(errLease, errMax) == nil && l.Lease > l.Max {
		p.Add("lease", "must not be longer than lease_max")
	}
	if p != nil {
		return nil, p.Err()
	}
	_, err := storage.Update(ctx, req.Mount.Storage, func(t *storage.Txn) error { return engines.PutRecord(t, leaseKey, &l) })
	if err != nil || l.Max <= req.Mount.MaxLeaseTTL {
		return nil, err
	}
	return &engines.Response{Warnings: []string{fmt.Sprintf("lease_max: is longer than the maximum of the mount, %v, which ends leases earlier", req.Mount.MaxLeaseTTL)}}, nil
}

// parseLease reads a duration of at least a second, in units up to hours.
func parseLease(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	d, err := time.ParseDuration(text)
	switch {
	case err == nil && d >= time.Second:
		return d, nil
	case err == nil:
		return 0, errors.New("must be at least a second")
	case strings.Trim(text, "0123456789.") == "":
		return 0, errors.New("must have a unit, such as \"30m\" or \"12h\"")
	case strings.HasSuffix(text, "d") || strings.HasSuffix(text, "w"):
		return 0, errors.New("must be a duration such as \"30m\" or \"12h\": h is the largest unit, a day is \"24h\"")
	}
	return 0, errors.New("must be a duration such as \"30m\" or \"12h\"")
}
