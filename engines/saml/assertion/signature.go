package assertion

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/beevik/etree"
	dsig "github.com/russellhaering/goxmldsig"
	"github.com/russellhaering/goxmldsig/etreeutils"
)

// Algorithms that a signature may name.
var (
	canonicalisations = words(`http://www.w3.org/2001/10/xml-exc-c14n# http://www.w3.org/2001/10/xml-exc-c14n#WithComments
		http://www.w3.org/TR/2001/REC-xml-c14n-20010315 http://www.w3.org/TR/2001/REC-xml-c14n-20010315#WithComments
		http://www.w3.org/2006/12/xml-c14n11 http://www.w3.org/2006/12/xml-c14n11#WithComments`)
	methods = map[string]x509.SignatureAlgorithm{
		"http://www.w3.org/2001/04/xmldsig-more#rsa-sha256":   x509.SHA256WithRSA,
		"http://www.w3.org/2001/04/xmldsig-more#rsa-sha384":   x509.SHA384WithRSA,
		"http://www.w3.org/2001/04/xmldsig-more#rsa-sha512":   x509.SHA512WithRSA,
		"http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha256": x509.ECDSAWithSHA256,
		"http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha384": x509.ECDSAWithSHA384,
		"http://www.w3.org/2001/04/xmldsig-more#ecdsa-sha512": x509.ECDSAWithSHA512,
	}
	digests = words(`http://www.w3.org/2001/04/xmlenc#sha256 http://www.w3.org/2001/04/xmldsig-more#sha384
		http://www.w3.org/2001/04/xmlenc#sha512`)
)

const (
	maxSignature  = 8 << 10  // bytes of a SignatureValue: base64 of 16384 bits, with blanks
	maxSignedInfo = 16 << 10 // bytes of a SignedInfo, which is canonicalised for everybody
)

const enveloped = "http://www.w3.org/2000/09/xmldsig#enveloped-signature"

// allowSignature checks the signature of a response or assertion, if it has one: that it is about this very element, all
// of it, by algorithms that are good enough.
func allowSignature(e *element) error {
	signature := e.child("ds:Signature")
	if signature == nil {
		return nil
	}
	info := signature.child("ds:SignedInfo")
	reference := info.child("ds:Reference")
	transforms := reference.child("ds:Transforms")
	value := signature.child("ds:SignatureValue")
	if value == nil || transforms == nil || reference.child("ds:DigestValue") == nil {
		return reject(Structure, "the signature of %s lacks a part", e.name)
	}
	if len(value.text) > maxSignature {
		return reject(Signature, "the signature of %s is longer than any key's", e.name)
	}
	if id := e.value("ID"); id == "" || reference.value("URI") != "#"+id {
		return reject(Signature, "the signature of %s is about %s", e.name, quote(reference.value("URI")))
	}
	method, canonicalisation, digest := info.child("ds:SignatureMethod"), info.child("ds:CanonicalizationMethod"), reference.child("ds:DigestMethod")
	if method == nil || canonicalisation == nil || digest == nil {
		return reject(Structure, "the signature of %s does not name its algorithms", e.name)
	}
	if err := cmp.Or(allowAlgorithm(e, canonicalisation, canonicalisations), allowAlgorithm(e, method, methods), allowAlgorithm(e, digest, digests)); err != nil {
		return err
	}
	list := transforms.all("ds:Transform")
	if len(list) == 0 || len(list) > 2 || list[0].value("Algorithm") != enveloped {
		return reject(Algorithm, "the signature of %s has other transforms than enveloped-signature and a canonicalisation", e.name)
	}
	if len(list) == 2 {
		return allowAlgorithm(e, list[1], canonicalisations)
	}
	return nil
}

func allowAlgorithm[V any](e, part *element, allowed map[string]V) error {
	algorithm := part.value("Algorithm")
	if _, ok := allowed[algorithm]; !ok {
		return reject(Algorithm, "the signature of %s uses the %s %s, which is not allowed: choose RSA or ECDSA with SHA-256 and exclusive canonicalisation at the identity provider",
			e.name, strings.TrimPrefix(part.name, "ds:"), quote(algorithm))
	}
	return nil
}

// usable returns why a certificate's key must not be used, nil if it may.
func usable(c *x509.Certificate) error {
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 {
			return reject(Algorithm, "the certificate has an RSA key with %d bits, less than 2048", bits)
		}
		return nil
	case *ecdsa.PublicKey:
		switch key.Curve {
		case elliptic.P256(), elliptic.P384(), elliptic.P521():
			return nil
		}
	}
	return reject(Algorithm, "the certificate's key is neither RSA nor on P-256, P-384 or P-521")
}

// signed is what signatures cover, read from exactly the bytes that were signed. An element without signature is nil.
type signed struct{ response, assertion *element }

// verify checks the signatures that a document has. Response and assertion are verified on their own, each as it came:
// gosaml2 would check an assertion within the canonical form of its response, which may have lost namespace declarations
// that its own signature covers. The signature values are checked before anything of the document is canonicalised but
// their SignedInfo: who has no key must not make a node work. A panic in a library is a rejection.
func verify(root *element, expect Expect) (s signed, err error) {
	defer func() {
		if p := recover(); p != nil {
			s, err = signed{}, reject(Structure, "the signature library panicked")
		}
	}()
	ofResponse, err := signers(root, expect)
	if err != nil {
		return signed{}, err
	}
	a := root.child("saml:Assertion")
	ofAssertion, err := signers(a, expect)
	if err != nil {
		return signed{}, err
	}
	if ofResponse != nil {
		if s.response, err = verifyElement(root.tree(), root, ofResponse, expect.Now); err != nil {
			return signed{}, err
		}
	}
	if ofAssertion != nil {
		if s.assertion, err = verifyElement(detached(a, root), a, ofAssertion, expect.Now); err != nil {
			return signed{}, err
		}
	}
	return s, nil
}

// signers returns the certificates whose key made the signature value of an element, nil if it has no signature. Of the
// document only the SignedInfo is checked.
func signers(e *element, expect Expect) ([]*x509.Certificate, error) {
	signature := e.child("ds:Signature")
	if signature == nil {
		return nil, nil
	}
	if at := signature.child("ds:SignedInfo").source; at.to-at.from > maxSignedInfo {
		return nil, reject(Structure, "the SignedInfo of %s is longer than %d bytes", e.name, maxSignedInfo)
	}
	canonical, err := canonicalInfo(signature.child("ds:SignedInfo"))
	if err != nil {
		return nil, reject(Structure, "the SignedInfo of %s cannot be canonicalised", e.name)
	}
	method := methods[signature.child("ds:SignedInfo").child("ds:SignatureMethod").value("Algorithm")]
	var known []*x509.Certificate
	var unusable, last error
	for _, cert := range expect.Certificates {
		if err := usable(cert); err != nil {
			unusable = err
			continue
		}
		if last = cert.CheckSignature(method, canonical, forLibrary(e, cert)); last == nil {
			known = append(known, cert)
		}
	}
	switch {
	case known != nil:
		return known, nil
	case last == nil:
		return nil, unusable
	}
	return nil, libraryRefusal(last, e, expect.Certificates...)
}

// canonicalInfo returns the canonical form of a SignedInfo, made as the library does it: with the namespaces around it.
func canonicalInfo(info *element) ([]byte, error) {
	el := info.tree()
	for _, b := range slices.Backward(info.source.namespaces) { // the innermost first
		name := etree.Attr{Space: "xmlns", Key: b.prefix, Value: b.uri}
		if b.prefix == "" {
			name.Space, name.Key = "", "xmlns"
		}
		if !slices.ContainsFunc(el.Attr, func(a etree.Attr) bool { return a.Space == name.Space && a.Key == name.Key }) {
			el.Attr = append(el.Attr, name)
		}
	}
	algorithm := info.child("ds:CanonicalizationMethod").value("Algorithm")
	if strings.HasPrefix(algorithm, "http://www.w3.org/2001/10/xml-exc-c14n#") {
		return dsig.MakeC14N10ExclusiveCanonicalizerWithPrefixList("").Canonicalize(el) // there are no comments
	}
	return dsig.MakeC14N11Canonicalizer().Canonicalize(el)
}

// verifyElement checks the signature of an element, which it changes, with the certificates of its key: one that is valid
// now, if there is one. It returns what was signed. e is the same element in our reading.
func verifyElement(el *etree.Element, e *element, certs []*x509.Certificate, now time.Time) (*element, error) {
	value, err := detachValue(el)
	if err != nil {
		return nil, err
	}
	cert := certs[0]
	if i := slices.IndexFunc(certs, func(c *x509.Certificate) bool { return within(now, c).Equal(now) }); i >= 0 {
		cert = certs[i] // the same key may have a new certificate
	}
	value.SetText(base64.StdEncoding.EncodeToString(forLibrary(e, cert)))
	context := dsig.NewDefaultValidationContext(&dsig.MemoryX509CertificateStore{Roots: []*x509.Certificate{cert}})
	context.Clock = dsig.NewFakeClockAt(within(now, cert))
	verified, err := context.Validate(el)
	switch {
	case err != nil:
		return nil, libraryRefusal(err, e, certs...)
	case !within(now, cert).Equal(now):
		return nil, reject(Certificate, "the certificate that it is signed with is valid from %s until %s only",
			cert.NotBefore.UTC().Format(time.RFC3339), cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return read(verified, e)
}

// within returns the time closest to now at which a certificate is valid.
func within(now time.Time, c *x509.Certificate) time.Time {
	if now.Before(c.NotBefore) {
		return c.NotBefore
	}
	if now.After(c.NotAfter) {
		return c.NotAfter
	}
	return now
}

// detached returns the assertion in a response, with the namespaces that are declared around it.
func detached(a, response *element) *etree.Element {
	alone := a.tree()
	for _, outer := range response.written.Attr {
		_, declaration := declares(outer.Name)
		if declaration && !slices.ContainsFunc(a.written.Attr, func(own xml.Attr) bool { return own.Name == outer.Name }) {
			alone.Attr = append(alone.Attr, etree.Attr{Space: outer.Name.Space, Key: outer.Name.Local, Value: outer.Value})
		}
	}
	return alone
}

// detachValue returns the SignatureValue of an element's own signature, and removes its KeyInfo: it must not be read
// but ours which key is tried. Both are outside of what is signed; an inner signature would not be.
func detachValue(el *etree.Element) (*etree.Element, error) {
	for _, c := range el.ChildElements() {
		if c.Tag != "Signature" {
			continue
		}
		var value *etree.Element
		for _, part := range c.ChildElements() {
			switch part.Tag {
			case "KeyInfo":
				c.RemoveChild(part)
			case "SignatureValue":
				value = part
			}
		}
		if value != nil {
			return value, nil
		}
	}
	return nil, reject(Signature, "there is no signature value")
}

// forLibrary returns the value of an element's signature as the library wants it for a certificate: XML signatures hold
// ECDSA's two numbers one after the other, the library expects them in ASN.1. What cannot be decoded is nil.
func forLibrary(e *element, cert *x509.Certificate) []byte {
	value, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(e.child("ds:Signature").child("ds:SignatureValue").text), ""))
	if err != nil {
		return nil
	}
	key, ok := cert.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return value
	}
	size := (key.Curve.Params().BitSize + 7) / 8
	if len(value) != 2*size {
		return value
	}
	der, err := asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(value[:size]), new(big.Int).SetBytes(value[size:])})
	if err != nil {
		return nil
	}
	return der
}

// read reads what was signed: the library has made its tree of the canonical bytes that the digest is of.
func read(verified *etree.Element, unverified *element) (*element, error) {
	e, err := parseTree(verified)
	if err != nil {
		return nil, err
	}
	if err := allow(e, unverified.name); err != nil {
		return nil, err
	}
	if e.value("ID") != unverified.value("ID") {
		return nil, reject(Signature, "the signature is about another element")
	}
	return e, nil
}

func libraryRefusal(err error, e *element, certs ...*x509.Certificate) error {
	if errors.Is(err, etreeutils.ErrTraversalLimit) {
		return reject(Statement, "it has too many elements before its signature: send only those groups that matter, by a filter at the identity provider")
	}
	return reject(Signature, "the signature of %s is wrong: %s", e.name, hint(err, e, certs))
}

// hint says whether the signature claims to be by a certificate that we have.
func hint(err error, e *element, certs []*x509.Certificate) string {
	text := cut(err.Error())
	named := e.child("ds:Signature").child("ds:KeyInfo").child("ds:X509Data").child("ds:X509Certificate")
	if named == nil || len(certs) == 0 {
		return text
	}
	der, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(named.text), ""))
	if err != nil || slices.ContainsFunc(certs, func(c *x509.Certificate) bool { return slices.Equal(c.Raw, der) }) {
		return text
	}
	sum := sha256.Sum256(der)
	return fmt.Sprintf("%s; it names a certificate that is not configured, with the SHA-256 fingerprint %s", text, hex.EncodeToString(sum[:]))
}
