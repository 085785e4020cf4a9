package repohost

import (
	"crypto/rand"
	"encoding/base64"

	"github.com/google/go-github/v89/github"
	"golang.org/x/crypto/nacl/box"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// decodeKey returns the key that the destination answered.
func decodeKey(in github.PublicKey) (*publicKey, error) {
	raw, err := base64.StdEncoding.DecodeString(deref(in.Key))
	k := &publicKey{id: deref(in.KeyID)}
	if err != nil || len(raw) != len(k.key) || k.id == "" {
		return nil, destination.UnexpectedResponse("GitHub", false)
	}
	copy(k.key[:], raw)
	return k, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// seal returns a value in a box that only the owner of the key can open, as the API takes it.
func (k *publicKey) seal(value []byte) (string, error) {
	out, err := box.SealAnonymous(nil, value, &k.key, rand.Reader)
	if err != nil {
		return "", internal("a value could not be sealed")
	}
	return base64.StdEncoding.EncodeToString(out), nil
}
