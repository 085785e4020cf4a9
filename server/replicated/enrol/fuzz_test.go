package enrol

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"
)

var fuzzNow = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func fuzzCA(f *testing.F) (CA, *x509.Certificate) {
	f.Helper()
	ca, err := NewCA(fuzzNow)
	if err != nil {
		f.Fatal(err)
	}
	cert, err := ParseCA(ca.Cert)
	if err != nil {
		f.Fatal(err)
	}
	return ca, cert
}

func fuzzBundle(ca CA) Bundle {
	return Bundle{Secret: "s", CA: ca.Cert, SetID: "set", SecondaryID: "id", Addrs: []string{"a:1"}, Exp: 1}
}

func FuzzToken(f *testing.F) {
	ca, cert := fuzzCA(f)
	good, err := ca.Sign(Claims{Exp: fuzzNow.Unix() + 60, JTI: "j", ID: "i", SetID: "s"})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{good, good[:len(good)-1], "a.b.c", "..", "", "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.e30."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		c, err := Parse(token)
		if err == nil && (c.JTI == "" || c.ID == "" || c.SetID == "" || c.Type != ClaimsType) {
			t.Errorf("an incomplete token was accepted: %q", token)
		}
		if _, err := Verify(cert, token, fuzzNow); err == nil && token != good {
			t.Errorf("a token that nobody has signed was accepted: %q", token)
		}
	})
}

func FuzzBundle(f *testing.F) {
	ca, _ := fuzzCA(f)
	text, err := json.Marshal(fuzzBundle(ca))
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(text), "{}", "", "[]", `{"ca":"eA=="}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := ParseBundle(text)
		if err != nil {
			return
		}
		if b.Secret == "" || b.SecondaryID == "" || len(b.Addrs) == 0 {
			t.Errorf("an incomplete bundle was accepted: %q", text)
		}
		again, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseBundle(again); err != nil {
			t.Errorf("a bundle is not accepted again: %v", err)
		}
	})
}

func FuzzSealedBundle(f *testing.F) {
	ca, _ := fuzzCA(f)
	public, private, err := GenerateKey()
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := SealBundle(public, fuzzBundle(ca))
	if err != nil {
		f.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{sealed, sealed[:40], "AQ==", "", "!"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := OpenBundle(private, token); err != nil {
			return
		}
		if again, _ := base64.StdEncoding.DecodeString(token); string(again) != string(raw) {
			t.Errorf("a bundle that nobody has sealed was opened: %q", token)
		}
	})
}

func FuzzPublicKey(f *testing.F) {
	ca, _ := fuzzCA(f)
	public, _, err := GenerateKey()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{public, "", "AA==", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if _, err := SealBundle(key, fuzzBundle(ca)); err != nil && err != ErrPublicKey {
			t.Errorf("SealBundle(%q) = %v", key, err)
		}
	})
}

func FuzzSubject(f *testing.F) {
	for _, seed := range []string{"coffer://secondary/61/62/63", "coffer://secondary/61/62", "coffer://secondary///", "https://secondary/61/62/63", "coffer://secondary/6A/62/63", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		s, err := parseSubject(uri)
		if err != nil {
			return
		}
		u, err := s.uri()
		if err != nil || u[0].String() != uri {
			t.Errorf("%q is read as %+v, which is written as %v, %v", uri, s, u, err)
		}
	})
}

func FuzzCA(f *testing.F) {
	ca, _ := fuzzCA(f)
	for _, seed := range [][]byte{ca.Cert, ca.Key, append(ca.Cert, ca.Cert...), []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if cert, err := ParseCA(text); err == nil && !cert.IsCA {
			t.Error("what is not a CA was accepted")
		}
	})
}

func FuzzCSR(f *testing.F) {
	ca, _ := fuzzCA(f)
	csr, _, err := NewCSR()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{csr, csr[:len(csr)-1], []byte("x"), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, csr []byte) {
		_, err := ca.SignCSR(csr, Subject{ID: "a", ClusterID: "b", Enrolment: "c"}, fuzzNow)
		if _, keyErr := RequestKey(csr); (err == nil) != (keyErr == nil) {
			t.Errorf("SignCSR = %v, RequestKey = %v", err, keyErr)
		}
	})
}
