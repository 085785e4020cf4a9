package pgp_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"io"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/coffer-project/coffer/server/pgp"
)

// holder is a person with a key.
type holder struct {
	t *testing.T
	*openpgp.Entity
}

func newHolder(t *testing.T) holder {
	t.Helper()
	e, err := openpgp.NewEntity("ada", "", "ada@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	return holder{t, e}
}

// public returns the public key as it is sent.
func (h holder) public(armored bool) string {
	h.t.Helper()
	return h.text(armored, openpgp.PublicKeyType, h.Serialize)
}

func (h holder) text(armored bool, kind string, write func(io.Writer) error) string {
	h.t.Helper()
	var raw bytes.Buffer
	if err := write(&raw); err != nil {
		h.t.Fatal(err)
	}
	if !armored {
		return base64.StdEncoding.EncodeToString(raw.Bytes())
	}
	var out bytes.Buffer
	w, err := armor.Encode(&out, kind, nil)
	if err == nil {
		_, err = w.Write(raw.Bytes())
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return out.String()
}

func (h holder) decrypt(message []byte) string {
	h.t.Helper()
	m, err := openpgp.ReadMessage(bytes.NewReader(message), openpgp.EntityList{h.Entity}, nil, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	plain, err := io.ReadAll(m.UnverifiedBody)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(plain)
}

func TestEncryptShares(t *testing.T) {
	ada, eve := newHolder(t), newHolder(t)
	keys, err := pgp.Parse("pgp_keys", []string{ada.public(true), eve.public(false)}, 2)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := pgp.EncryptShares(keys, [][]byte{{1, 2}, {0xff}})
	if err != nil {
		t.Fatal(err)
	}
	if got := []string{ada.decrypt(messages[0]), eve.decrypt(messages[1])}; got[0] != "0102" || got[1] != "ff" {
		t.Errorf("the holders read %q", got)
	}
	if _, err := openpgp.ReadMessage(bytes.NewReader(messages[0]), openpgp.EntityList{eve.Entity}, nil, nil); err == nil {
		t.Error("another holder reads a share")
	}
	if got, want := pgp.Fingerprints(keys)[0], hex.EncodeToString(ada.PrimaryKey.Fingerprint); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	plain, err := pgp.EncryptShares(nil, [][]byte{{1}})
	if err != nil || len(plain) != 1 || plain[0][0] != 1 {
		t.Errorf("without keys: %v, %v", plain, err)
	}
}

func TestParse_Refuses(t *testing.T) {
	ada := newHolder(t)
	signing := newHolder(t)
	signing.Subkeys = nil
	private := ada.text(true, openpgp.PrivateKeyType, func(w io.Writer) error { return ada.SerializePrivate(w, nil) })
	for name, tt := range map[string]struct {
		keys []string
		want string
	}{
		"too few":           {[]string{ada.public(false)}, "one key for each share"},
		"no key":            {[]string{ada.public(false), "x"}, "key 2: it is no OpenPGP public key"},
		"empty":             {[]string{"", ada.public(false)}, "key 1"},
		"a private key":     {[]string{private, private}, "it is a private key"},
		"for signing only":  {[]string{signing.public(true), signing.public(true)}, "nothing can be encrypted to it"},
		"of absurd size":    {[]string{strings.Repeat("A", 1<<20), ""}, "longer than"},
		"two keys together": {[]string{twoKeys(t), ada.public(false)}, "want one"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := pgp.Parse("pgp_keys", tt.keys, 2)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "pgp_keys") {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func twoKeys(t *testing.T) string {
	a, b := newHolder(t), newHolder(t)
	return a.text(false, "", func(w io.Writer) error {
		if err := a.Serialize(w); err != nil {
			return err
		}
		return b.Serialize(w)
	})
}

func TestParseOne(t *testing.T) {
	if k, err := pgp.ParseOne("pgp_key", ""); k != nil || err != nil {
		t.Errorf("no key: %v, %v", k, err)
	}
	ada := newHolder(t)
	k, err := pgp.ParseOne("pgp_key", ada.public(true))
	if err != nil {
		t.Fatal(err)
	}
	text, err := k.EncryptText("hvs.token")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(text.Reveal())
	if err != nil || ada.decrypt(raw) != "hvs.token" {
		t.Errorf("the holder reads something else (%v)", err)
	}
}
