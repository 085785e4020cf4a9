package repohost

import (
	"crypto/rand"
	"encoding/base64"

	"golang.org/x/crypto/nacl/box"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// keyIn is a public key as GitHub describes it.
type keyIn struct {
	ID  string `json:"key_id"`
	Key string `json:"key"`
}

// decodeKey returns the key that the destination answered.
func decodeKey(in keyIn) (*publicKey, error) {
	raw, err := base64.StdEncoding.DecodeString(in.Key)
	k := &publicKey{id: in.ID}
	if err != nil || len(raw) != len(k.key) || k.id == "" {
		return nil, destination.UnexpectedResponse("GitHub", false)
	}
	copy(k.key[:], raw)
	return k, nil
}

// seal returns a value in a box that only the owner of the key can open, as the API takes it.
func (k *publicKey) seal(value []byte) (string, error) {
	out, err := box.SealAnonymous(nil, value, &k.key, rand.Reader)
	if err != nil {
		return "", destination.InternalError("repohost: a value could not be sealed")
	}
	return base64.StdEncoding.EncodeToString(out), nil
}
