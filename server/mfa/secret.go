package mfa

import (
	"bytes"
	"context"
	"encoding/base64"
	"image/png"
	"strings"
	"time"

	"github.com/pquerna/otp"
	"github.com/pquerna/otp/hotp"
	"github.com/pquerna/otp/totp"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/identity"
	"github.com/coffer-project/coffer/storage"
)

// secret is what an entity's authenticator app and the server share.
type secret struct {
	Codes     codes     `json:"codes"`
	Key       string    `json:"key"` // base32
	CreatedAt time.Time `json:"created_at"`
}

type generateIn struct {
	Method string `json:"method_id" help:"Id of the method." required:"true" max:"128"`
}

type entityIn struct {
	Method string `json:"method_id" help:"Id of the method." required:"true" max:"128"`
	Entity string `json:"entity_id" help:"Id of the entity." required:"true" max:"128"`
}

func (s *Store) generateOwn(ctx context.Context, req *engines.Request, in *generateIn) (*engines.Response, error) {
	if req.Caller.EntityID == "" {
		return nil, engines.Invalid("the token belongs to no entity: log in by an auth method, or ask an operator to use admin-generate")
	}
	// Those above can ask for codes of their methods here, so they must be had here.
	reachable := append([]string{namespace(req.Mount)}, s.opts.Namespaces.Above(ctx, namespace(req.Mount))...)
	return s.generate(ctx, reachable, in.Method, req.Caller.EntityID)
}

func (s *Store) generateFor(ctx context.Context, req *engines.Request, in *entityIn) (*engines.Response, error) {
	return s.generate(ctx, []string{namespace(req.Mount)}, in.Method, in.Entity)
}

// generate makes a secret and shows it, this once. One that is there stays: a user with only the first factor must
// not be able to replace the second. The method must be in one of the namespaces.
func (s *Store) generate(ctx context.Context, namespaces []string, methodID, entityID string) (*engines.Response, error) {
	e, err := s.entity(ctx, entityID)
	if err != nil {
		return nil, err
	}
	var key *otp.Key
	var m *method
	err = s.update(ctx, func(t *storage.Txn) (err error) {
		key = nil
		if m, err = methodOf(ctx, t, methodID, namespaces...); missing(err) {
			return engines.Invalid(`field "method_id": no method of this namespace has this id`)
		} else if err != nil {
			return err
		}
		k := secretKey(m.ID, e.ID)
		if _, err := t.Get(ctx, k); !missing(err) {
			return err
		}
		if key, err = m.newKey(e.Name); err != nil {
			return err
		}
		put(t, k, &secret{Codes: m.Codes, Key: key.Secret(), CreatedAt: time.Now().UTC()})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if key == nil {
		return &engines.Response{Warnings: []string{"the entity already has a secret of this method: admin-destroy removes it"}}, nil
	}
	barcode, err := m.draw(key)
	if err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"url": key.URL(), "barcode": barcode}}, nil
}

func (s *Store) entity(ctx context.Context, id string) (identity.Entity, error) {
	if !validID(id) {
		return identity.Entity{}, engines.Invalid(`field "entity_id": no entity has this id`)
	}
	e, err := s.enabled(ctx, id)
	if missing(err) {
		return identity.Entity{}, engines.Invalid(`field "entity_id": no entity has this id`)
	}
	return e, err
}

func (m *method) newKey(account string) (*otp.Key, error) {
	return totp.Generate(totp.GenerateOpts{
		Issuer: m.Codes.Issuer, AccountName: account, Period: uint(m.Codes.Period), SecretSize: uint(m.KeySize),
		Digits: otp.Digits(m.Codes.Digits), Algorithm: algorithms[m.Codes.Algorithm],
	})
}

// draw returns the key's QR code as a PNG in base64, or "" if the method has none.
func (m *method) draw(key *otp.Key) (string, error) {
	if m.QRSize == 0 {
		return "", nil
	}
	image, err := key.Image(m.QRSize, m.QRSize)
	if err != nil {
		return "", engines.Invalid("the QR code does not fit: make the method's qr_size greater, or 0")
	}
	var b bytes.Buffer
	if err := png.Encode(&b, image); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

// destroy removes an entity's secret; none is fine.
func (s *Store) destroy(ctx context.Context, req *engines.Request, in *entityIn) (*engines.Response, error) {
	if !validID(in.Entity) {
		return nil, engines.Invalid(`field "entity_id": no entity has this id`)
	}
	return nil, s.update(ctx, func(t *storage.Txn) error {
		m, err := methodWithin(ctx, t, req, in.Method)
		if missing(err) {
			return engines.Invalid(`field "method_id": no method of this namespace has this id`)
		}
		if err != nil {
			return err
		}
		t.Delete(secretKey(m.ID, in.Entity))
		return nil
	})
}

// code returns the code of a step, the number of the period since 1970.
func (c *secret) code(step int64) (string, error) {
	return hotp.GenerateCodeCustom(c.Key, uint64(step), hotp.ValidateOpts{
		Digits: otp.Digits(c.Codes.Digits), Algorithm: algorithms[c.Codes.Algorithm],
	})
}

// match returns when the latest period began that this is the code of, in seconds since 1970, or 0. It takes the
// same time whichever that is.
func (c *secret) match(given string, at time.Time) (began int64, err error) {
	given = strings.TrimSpace(given)
	period, skew := int64(c.Codes.Period), int64(c.Codes.Skew)
	now := at.Unix() / period
	for step := now - skew; step <= now+skew; step++ {
		code, err := c.code(step)
		if err != nil {
			return 0, err
		}
		if equal(code, given) {
			began = step * period
		}
	}
	return began, nil
}
