package state

import (
	"context"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Claim says which link owns a name at a location.
type Claim struct {
	Format      int    `json:"format"`
	NS          string `json:"ns"`
	Destination string `json:"destination"`
	Association string `json:"association"`
	Secret      string `json:"secret"`
	Type        string `json:"type"` // of the destination
	Name        string `json:"name"` // likewise
	Bytes       int    `json:"bytes"`
}

func (c *Claim) RecordFormat() *int { return &c.Format }

func (c *Claim) BelongsTo(d *Destination, a *Association, secret string) bool {
	return c.Destination == d.ID && c.Association == a.ID && c.Secret == secret
}

// Owner returns the association that has created the claim, nil if it is gone, such as one whose destination was deleted by force.
func (c *Claim) Owner(ctx context.Context, g engines.Getter) (*Association, error) {
	var d Destination
	if _, err := GetDestination(ctx, g, DestinationKey(c.NS, c.Type, c.Name), &d); err != nil || d.ID != c.Destination {
		return nil, err
	}
	return GetAssociation(ctx, g, AssociationKey(c.NS, c.Destination, c.Association))
}

// ReleaseClaim deletes the claim of a name, if it is that of a secret's link.
func ReleaseClaim(ctx context.Context, tx *storage.Txn, key storage.Key, d *Destination, a *Association, secret string) error {
	var c Claim
	found, err := engines.GetRecord(ctx, tx, key, &c)
	if err != nil || !found || !c.BelongsTo(d, a, secret) {
		return err
	}
	tx.Delete(key)
	return nil
}
