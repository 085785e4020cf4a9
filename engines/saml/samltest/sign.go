package samltest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha1" // registers the digest that must be rejected
	_ "crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"time"
)

const (
	dsigNS = "http://www.w3.org/2000/09/xmldsig#"
	moreNS = "http://www.w3.org/2001/04/xmldsig-more#"
	encNS  = "http://www.w3.org/2001/04/xmlenc#"
)

// Kind is a kind of key.
type Kind string

// Kinds.
const (
	RSA1024 Kind = "rsa-1024"
	RSA2048 Kind = "rsa-2048"
	P256    Kind = "p-256"
	P384    Kind = "p-384"
	P521    Kind = "p-521"
)

// Key is a private key with a certificate.
type Key struct {
	Signer      crypto.Signer
	Certificate *x509.Certificate
}

var keys struct {
	sync.Mutex
	made map[string]*Key
}

// NewKey returns the n-th key of a kind, the same one for the whole process. Its certificate is valid from 1990 to 2090.
func NewKey(kind Kind, n int) *Key {
	keys.Lock()
	defer keys.Unlock()
	id := fmt.Sprint(kind, n)
	if k := keys.made[id]; k != nil {
		return k
	}
	if keys.made == nil {
		keys.made = map[string]*Key{}
	}
	var signer crypto.Signer
	var err error
	switch kind {
	case RSA1024:
		signer, err = rsa.GenerateKey(rand.Reader, 1024)
	case RSA2048:
		signer, err = rsa.GenerateKey(rand.Reader, 2048)
	case P256:
		signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case P384:
		signer, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case P521:
		signer, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	default:
		panic("samltest: unknown kind of key " + kind)
	}
	if err != nil {
		panic(err)
	}
	k := Certify(signer, time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC))
	keys.made[id] = k
	return k
}

// Certify returns a key with a new certificate of its own making.
func Certify(signer crypto.Signer, notBefore, notAfter time.Time) *Key {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "idp.example.com"},
		NotBefore: notBefore, NotAfter: notAfter, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, signer.Public(), signer)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return &Key{Signer: signer, Certificate: cert}
}

// Signature says how an element is signed. The zero value signs as most providers do: SHA-256, exclusive
// canonicalisation, the certificate in KeyInfo.
type Signature struct {
	Key    *Key        // nil: the provider's
	Hash   crypto.Hash // of the signature; 0: SHA-256
	Digest crypto.Hash // of the reference; 0: SHA-256
	C14N   string      // of the reference and of SignedInfo; "": Exclusive
	// Prefixes is the PrefixList of the reference's canonicalisation.
	Prefixes string
	// Prefix is that of the signature's elements, "ds" by default, "-" for none.
	Prefix string
	// KeyInfo is text instead of a KeyInfo with the certificate; "-" for none.
	KeyInfo string
	// DER writes ECDSA signatures as ASN.1 instead of r||s.
	DER bool
	// Wrap breaks long base64 into lines, with CR and LF.
	Wrap bool
	// Edit changes the text of the signature before SignedInfo is signed. Its digest and SignatureValue are there as
	// DIGEST and SIGNATURE.
	Edit func(string) string
	// URI is the reference's, "#" and the element's ID by default.
	URI string
	// HMAC signs with HMAC-SHA256 under these bytes instead.
	HMAC []byte
}

func hashName(h crypto.Hash) string { return strings.ToLower(strings.ReplaceAll(h.String(), "-", "")) }

func (s Signature) method() string {
	if s.HMAC != nil {
		return moreNS + "hmac-sha256"
	}
	kind := "rsa-"
	if _, ok := s.Key.Signer.(*ecdsa.PrivateKey); ok {
		kind = "ecdsa-"
	}
	if s.Hash == crypto.SHA1 && kind == "rsa-" {
		return dsigNS + "rsa-sha1"
	}
	return moreNS + kind + hashName(s.Hash)
}

func digestMethod(h crypto.Hash) string {
	switch h {
	case crypto.SHA1:
		return dsigNS + "sha1"
	case crypto.SHA384:
		return moreNS + "sha384"
	}
	return encNS + hashName(h)
}

// defaults fills in what is not said.
func (s Signature) defaults(k *Key) Signature {
	if s.Key == nil {
		s.Key = k
	}
	if s.Hash == 0 {
		s.Hash = crypto.SHA256
	}
	if s.Digest == 0 {
		s.Digest = crypto.SHA256
	}
	if s.C14N == "" {
		s.C14N = Exclusive
	}
	switch s.Prefix {
	case "":
		s.Prefix = "ds:"
	case "-":
		s.Prefix = ""
	default:
		s.Prefix += ":"
	}
	return s
}

// Sign returns text with the signature of the element with the ID where marker is. The element envelops the marker, of
// which there is one.
func (s Signature) Sign(text, marker, id string, k *Key) (string, error) {
	s = s.defaults(k)
	doc, err := parse(strings.Replace(text, marker, "", 1))
	if err != nil {
		return "", err
	}
	signed := doc.find(func(n *node) bool { return n.attribute("ID") == id })
	if signed == nil {
		return "", fmt.Errorf("there is no element with the ID %q", id)
	}
	digest := hash(s.Digest, canonical(signed, s.C14N, strings.Fields(s.Prefixes)))
	signature := s.text(id)
	if s.Edit != nil {
		signature = s.Edit(signature)
	}
	signature = strings.Replace(signature, "DIGEST", base64.StdEncoding.EncodeToString(digest), 1)
	text = strings.Replace(text, marker, signature, 1)
	if doc, err = parse(text); err != nil {
		return "", err
	}
	info := doc.find(func(n *node) bool {
		if n.name.Local != "Signature" {
			return false
		}
		return n.find(func(v *node) bool {
			return v.name.Local == "SignatureValue" && len(v.children) == 1 && v.children[0] == "SIGNATURE"
		}) != nil
	})
	if info == nil {
		return "", fmt.Errorf("there is no SignatureValue to fill in")
	}
	info = info.find(func(n *node) bool { return n.name.Local == "SignedInfo" })
	value, err := s.sign(canonical(info, s.C14N, nil))
	if err != nil {
		return "", err
	}
	return strings.Replace(text, "SIGNATURE", s.encode(value), 1), nil
}

func (s Signature) text(id string) string {
	list, uri := "", s.URI
	if s.Prefixes != "" {
		list = fmt.Sprintf(`<ec:InclusiveNamespaces xmlns:ec="%s" PrefixList="%s"/>`, Exclusive, s.Prefixes)
	}
	if uri == "" {
		uri = "#" + id
	}
	info := s.KeyInfo
	switch info {
	case "":
		info = KeyInfo(s.Key, s.Prefix)
	case "-":
		info = ""
	}
	xmlns := "xmlns"
	if s.Prefix != "" {
		xmlns += ":" + strings.TrimSuffix(s.Prefix, ":")
	}
	p := s.Prefix
	return `<` + p + `Signature ` + xmlns + `="` + dsigNS + `"><` + p + `SignedInfo><` + p + `CanonicalizationMethod Algorithm="` + s.C14N + `"/><` +
		p + `SignatureMethod Algorithm="` + s.method() + `"/><` + p + `Reference URI="` + uri + `"><` + p + `Transforms><` +
		p + `Transform Algorithm="` + dsigNS + `enveloped-signature"/><` + p + `Transform Algorithm="` + s.C14N + `">` + list + `</` + p + `Transform></` +
		p + `Transforms><` + p + `DigestMethod Algorithm="` + digestMethod(s.Digest) + `"/><` + p + `DigestValue>DIGEST</` + p + `DigestValue></` +
		p + `Reference></` + p + `SignedInfo><` + p + `SignatureValue>SIGNATURE</` + p + `SignatureValue>` + info + `</` + p + `Signature>`
}

// KeyInfo returns the element with a key's certificate. prefix is "" or ends with a colon.
func KeyInfo(k *Key, prefix string) string {
	p := prefix
	return `<` + p + `KeyInfo><` + p + `X509Data><` + p + `X509Certificate>` + base64.StdEncoding.EncodeToString(k.Certificate.Raw) +
		`</` + p + `X509Certificate></` + p + `X509Data></` + p + `KeyInfo>`
}

func hash(h crypto.Hash, text string) []byte {
	w := h.New()
	w.Write([]byte(text))
	return w.Sum(nil)
}

func (s Signature) sign(text string) ([]byte, error) {
	if s.HMAC != nil {
		m := hmac.New(crypto.SHA256.New, s.HMAC)
		m.Write([]byte(text))
		return m.Sum(nil), nil
	}
	value, err := s.Key.Signer.Sign(rand.Reader, hash(s.Hash, text), s.Hash)
	key, ec := s.Key.Signer.(*ecdsa.PrivateKey)
	if err != nil || !ec || s.DER {
		return value, err
	}
	var pair struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(value, &pair); err != nil {
		return nil, err
	}
	size := (key.Curve.Params().BitSize + 7) / 8
	out := make([]byte, 2*size)
	pair.R.FillBytes(out[:size])
	pair.S.FillBytes(out[size:])
	return out, nil
}

// toDER re-encodes r||s; what is ASN.1 already stays as it is.
func toDER(raw []byte) []byte {
	if len(raw)%2 != 0 || len(raw) < 64 || (raw[0] == 0x30 && int(raw[1]) == len(raw)-2) {
		return raw
	}
	half := len(raw) / 2
	out, err := asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(raw[:half]), new(big.Int).SetBytes(raw[half:])})
	if err != nil {
		return raw
	}
	return out
}

func (s Signature) encode(value []byte) string {
	text := base64.StdEncoding.EncodeToString(value)
	if !s.Wrap {
		return text
	}
	var b strings.Builder
	for len(text) > 76 {
		b.WriteString(text[:76] + "\r\n")
		text = text[76:]
	}
	return "\r\n" + b.String() + text + "\r\n"
}
