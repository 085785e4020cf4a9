// Package pgp encrypts key shares and root tokens to the OpenPGP keys of the people who shall have them. What it makes is read with
// any OpenPGP program: the server never has a private key.
package pgp

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/coffer-project/coffer/engines"
)

// Bounds of a public key: in bytes as it is sent, and in bits, as the work grows with them.
const (
	maxKey  = 16 << 10
	maxBits = 8192
)

// Key is a public key that can be encrypted to.
type Key struct{ entity *openpgp.Entity }

// Parse reads the public keys of a field, each in base64 or armored. want is how many there must be. No texts are no keys, whatever
// is wanted. Errors are for the client, and quote nothing of a text.
func Parse(field string, texts []string, want int) ([]*Key, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	if len(texts) != want {
		return nil, engines.Invalid("field %q has %d keys, but there are %d shares: give one key for each share", field, len(texts), want)
	}
	var keys []*Key
	for i, text := range texts {
		k, err := parse(text)
		if err != nil {
			return nil, engines.Invalid("field %q: key %d: %v", field, i+1, err)
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// ParseOne is Parse for a field with one key; nil: the field is empty.
func ParseOne(field, text string) (*Key, error) {
	if text == "" {
		return nil, nil
	}
	keys, err := Parse(field, []string{text}, 1)
	if err != nil {
		return nil, err
	}
	return keys[0], nil
}

func parse(text string) (*Key, error) {
	if len(text) > maxKey {
		return nil, fmt.Errorf("it is longer than %d bytes: export it without photographs and signatures of others", maxKey)
	}
	list, err := entities(strings.TrimSpace(text))
	switch {
	case err != nil:
		return nil, fmt.Errorf("it is no OpenPGP public key in base64 or armored: %w", err)
	case len(list) != 1:
		return nil, fmt.Errorf("it holds %d public keys, want one", len(list))
	case list[0].PrivateKey != nil:
		return nil, errors.New("it is a private key: give the public key, and consider this one known to others")
	}
	sub, ok := list[0].EncryptionKey(time.Now())
	if !ok {
		return nil, errors.New("nothing can be encrypted to it: it has no valid key for that, or has expired")
	}
	if bits, err := sub.PublicKey.BitLength(); err != nil || bits > maxBits {
		return nil, fmt.Errorf("its key is of more than %d bits, or of a kind that is not known", maxBits)
	}
	k := &Key{list[0]}
	if _, err := k.Encrypt(nil); err != nil { // better now than when there is a share to lose
		return nil, fmt.Errorf("nothing can be encrypted to it: %w", err)
	}
	return k, nil
}

func entities(text string) (openpgp.EntityList, error) {
	if strings.HasPrefix(text, "-----BEGIN") {
		return openpgp.ReadArmoredKeyRing(strings.NewReader(text))
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	return openpgp.ReadKeyRing(bytes.NewReader(raw))
}

// Fingerprint returns the key's fingerprint in hex.
func (k *Key) Fingerprint() string { return hex.EncodeToString(k.entity.PrimaryKey.Fingerprint) }

// Encrypt returns plain as an OpenPGP message in its binary form.
func (k *Key) Encrypt(plain []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := openpgp.Encrypt(&out, []*openpgp.Entity{k.entity}, nil, nil, &packet.Config{DefaultCipher: packet.CipherAES256})
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(plain); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

// EncryptText is Encrypt in base64, for a token.
func (k *Key) EncryptText(plain string) (engines.Sensitive, error) {
	message, err := k.Encrypt([]byte(plain))
	if err != nil {
		return "", fmt.Errorf("encrypting to the key %s: %w", k.Fingerprint(), err)
	}
	return engines.Sensitive(base64.StdEncoding.EncodeToString(message)), nil
}

// EncryptShares encrypts each share, as hex, to the key at its place. Without keys the shares stay as they are.
func EncryptShares(keys []*Key, shares [][]byte) ([][]byte, error) {
	if len(keys) == 0 {
		return shares, nil
	}
	var out [][]byte
	for i, share := range shares {
		plain := []byte(hex.EncodeToString(share))
		message, err := keys[i].Encrypt(plain)
		clear(plain)
		if err != nil {
			return nil, fmt.Errorf("encrypting a share to the key %s: %w", keys[i].Fingerprint(), err)
		}
		out = append(out, message)
	}
	return out, nil
}

// Fingerprints returns those of keys; nil if there are none.
func Fingerprints(keys []*Key) []string {
	var out []string
	for _, k := range keys {
		out = append(out, k.Fingerprint())
	}
	return out
}
