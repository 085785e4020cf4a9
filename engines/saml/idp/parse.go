package idp

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	metadataNS   = "urn:oasis:names:tc:SAML:2.0:metadata"
	protocol     = "urn:oasis:names:tc:SAML:2.0:protocol"
	bindings     = "urn:oasis:names:tc:SAML:2.0:bindings:"
	httpRedirect = bindings + "HTTP-Redirect"

	maxDepth = 40
)

// entities is a group of entities, which may hold groups. Names are matched with their namespace.
type entities struct {
	lifetime
	Entities []entity   `xml:"urn:oasis:names:tc:SAML:2.0:metadata EntityDescriptor"`
	Groups   []entities `xml:"urn:oasis:names:tc:SAML:2.0:metadata EntitiesDescriptor"`
}

type entity struct {
	lifetime
	EntityID string     `xml:"entityID,attr"`
	Roles    []provider `xml:"urn:oasis:names:tc:SAML:2.0:metadata IDPSSODescriptor"`
}

// provider is an entity's role as an identity provider.
type provider struct {
	lifetime
	Protocols           string     `xml:"protocolSupportEnumeration,attr"`
	WantsSignedRequests string     `xml:"WantAuthnRequestsSigned,attr"`
	Keys                []key      `xml:"urn:oasis:names:tc:SAML:2.0:metadata KeyDescriptor"`
	Services            []endpoint `xml:"urn:oasis:names:tc:SAML:2.0:metadata SingleSignOnService"`

	entityID string
	within   []lifetime // its own and those of all that it is in
}

type lifetime struct {
	ValidUntil    string `xml:"validUntil,attr"`
	CacheDuration string `xml:"cacheDuration,attr"`
}

type key struct {
	Use  string `xml:"use,attr"`
	Data []struct {
		Certificates []string `xml:"http://www.w3.org/2000/09/xmldsig# X509Certificate"`
	} `xml:"http://www.w3.org/2000/09/xmldsig# KeyInfo>X509Data"`
}

type endpoint struct {
	Binding  string `xml:"Binding,attr"`
	Location string `xml:"Location,attr"`
}

// Parse reads a metadata document of at most MaxDocumentBytes: one EntityDescriptor, or an EntitiesDescriptor that holds
// exactly one identity provider for SAML 2.0. Whether it is still valid is for the caller to see. Keys for encryption,
// certificates of keys that are too weak, and everything that says nothing about logins are left out.
func Parse(document []byte) (*Descriptor, error) {
	if len(document) > MaxDocumentBytes {
		return nil, tooLarge()
	}
	document = bytes.TrimPrefix(document, []byte("\uFEFF")) // some begin with a byte order mark
	root, err := check(document)
	if err != nil {
		return nil, err
	}
	var top entities
	switch root {
	case "EntityDescriptor":
		top.Entities = make([]entity, 1)
		err = xml.Unmarshal(document, &top.Entities[0])
	case "EntitiesDescriptor":
		err = xml.Unmarshal(document, &top)
	}
	if err != nil {
		return nil, notXML(err)
	}
	switch found := top.providers(nil); {
	case len(found) == 0:
		return nil, errors.New("it describes no identity provider for SAML 2.0 (there is no such IDPSSODescriptor)")
	case len(found) > 1:
		return nil, fmt.Errorf("it describes %d identity providers: configure one of them with idp_sso_url, idp_entity_id and idp_cert instead", len(found))
	default:
		return found[0].descriptor()
	}
}

// check looks through all tokens before anything is made of them, and returns the name of the root.
func check(document []byte) (root string, err error) {
	dec := xml.NewDecoder(bytes.NewReader(document))
	dec.CharsetReader = func(string, io.Reader) (io.Reader, error) { return nil, errors.New("only UTF-8 is read") }
	depth := 0
	for {
		token, err := dec.Token()
		switch {
		case err == io.EOF && root == "":
			return "", errors.New("it is empty")
		case err == io.EOF:
			return root, nil
		case err != nil:
			return "", notXML(err)
		}
		switch t := token.(type) {
		case xml.Directive:
			if bytes.HasPrefix(bytes.ToLower(t), []byte("doctype html")) {
				return "", isHTML()
			}
			return "", errors.New("it has a DOCTYPE, which is not allowed in metadata")
		case xml.StartElement:
			if depth++; depth > maxDepth {
				return "", fmt.Errorf("its elements are nested deeper than %d levels", maxDepth)
			}
			if depth == 1 {
				if root != "" {
					return "", errors.New("it has more than one root element")
				}
				if root, err = checkRoot(t.Name); err != nil {
					return "", err
				}
			}
		case xml.EndElement:
			depth--
		case xml.CharData:
			if depth == 0 && len(bytes.TrimSpace(t)) > 0 {
				return "", errors.New("it is not XML: there is text outside the root element")
			}
		}
	}
}

func checkRoot(name xml.Name) (string, error) {
	switch {
	case strings.EqualFold(name.Local, "html"):
		return "", isHTML()
	case name.Space != metadataNS || name.Local != "EntityDescriptor" && name.Local != "EntitiesDescriptor":
		return "", fmt.Errorf("it is not SAML 2.0 metadata: its root element is %q, not EntityDescriptor", cut(name.Local))
	}
	return name.Local, nil
}

// notXML bounds the decoder's error, which repeats what it did not understand.
func notXML(err error) error { return errors.New("it is not well-formed XML: " + cut(err.Error())) }

func isHTML() error {
	return errors.New("it is an HTML page, not metadata: is there a login before it?")
}

// providers returns the identity providers of the group and of those in it.
func (g *entities) providers(within []lifetime) []*provider {
	within = append(slices.Clip(within), g.lifetime)
	var found []*provider
	for i := range g.Entities {
		e := &g.Entities[i]
		for j := range e.Roles {
			r := &e.Roles[j]
			if slices.Contains(strings.Fields(r.Protocols), protocol) {
				r.entityID = strings.TrimSpace(e.EntityID)
				r.within = append(slices.Clip(within), e.lifetime, r.lifetime)
				found = append(found, r)
			}
		}
	}
	for i := range g.Groups {
		found = append(found, g.Groups[i].providers(within)...)
	}
	return found
}

func (p *provider) descriptor() (*Descriptor, error) {
	d := &Descriptor{EntityID: p.entityID, WantsSignedRequests: isTrue(p.WantsSignedRequests)}
	if d.EntityID == "" {
		return nil, errors.New("it has no entity id (the entityID attribute of its EntityDescriptor)")
	}
	if err := CheckEntityID(d.EntityID); err != nil {
		return nil, fmt.Errorf("its entity id %w", err)
	}
	var err error
	if d.SSOURL, err = p.ssoURL(); err != nil {
		return nil, err
	}
	if d.Certificates, err = p.certificates(); err != nil {
		return nil, err
	}
	if d.ValidUntil, d.CacheDuration, err = shortest(p.within); err != nil {
		return nil, err
	}
	return d, nil
}

// ssoURL returns the first address that takes requests by HTTP-Redirect.
func (p *provider) ssoURL() (string, error) {
	var others []string
	for _, s := range p.Services {
		if s.Binding != httpRedirect {
			others = append(others, cut(strings.TrimPrefix(s.Binding, bindings)))
			continue
		}
		location := strings.TrimSpace(s.Location)
		if err := CheckURL(location); err != nil {
			return "", fmt.Errorf("its SingleSignOnService %w", err)
		}
		return location, nil
	}
	if others == nil {
		return "", errors.New("it has no SingleSignOnService")
	}
	return "", fmt.Errorf("its SingleSignOnService takes no requests by HTTP-Redirect, only by %s: enable that binding at the identity provider",
		strings.Join(others[:min(len(others), 5)], ", "))
}

// certificates returns those of the keys for signing. One that cannot be used does not matter as long as another can.
func (p *provider) certificates() ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	var unusable error
	for _, k := range p.Keys {
		if k.Use != "" && k.Use != "signing" {
			continue
		}
		for _, data := range k.Data {
			if n := len(all) + len(data.Certificates); n > MaxCertificates {
				return nil, fmt.Errorf("it has %d certificates for signing or more, the limit is %d", n, MaxCertificates)
			}
			var chain []*x509.Certificate
			for _, text := range data.Certificates {
				c, err := decodeCertificate(text)
				if err != nil {
					unusable = err
					continue
				}
				chain = append(chain, c)
			}
			for _, c := range withoutIssuers(chain) {
				if !slices.ContainsFunc(all, c.Equal) {
					all = append(all, c)
				}
			}
		}
	}
	switch {
	case len(all) == 0 && unusable != nil:
		return nil, fmt.Errorf("its certificate for signing %w", unusable)
	case len(all) == 0:
		return nil, errors.New("it has no certificate for signing")
	}
	return all, nil
}

func decodeCertificate(text string) (*x509.Certificate, error) {
	der, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		return nil, errors.New("is not base64")
	}
	return parseCertificate(der)
}

// withoutIssuers leaves out the authorities that issued others of the chain: they sign certificates, not responses.
func withoutIssuers(chain []*x509.Certificate) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(chain), func(c *x509.Certificate) bool {
		return slices.ContainsFunc(chain, func(other *x509.Certificate) bool {
			return !other.Equal(c) && other.CheckSignatureFrom(c) == nil
		})
	})
}

// shortest returns the earliest end and the shortest duration that any of them tells.
func shortest(within []lifetime) (validUntil time.Time, cacheDuration time.Duration, err error) {
	for _, l := range within {
		if text := strings.TrimSpace(l.ValidUntil); text != "" {
			at, err := parseTime(text)
			if err != nil {
				return time.Time{}, 0, err
			}
			if validUntil.IsZero() || at.Before(validUntil) {
				validUntil = at
			}
		}
		if d := parseDuration(strings.TrimSpace(l.CacheDuration)); d > 0 && (cacheDuration == 0 || d < cacheDuration) {
			cacheDuration = d
		}
	}
	return validUntil, cacheDuration, nil
}

// parseTime reads an xs:dateTime; without a time zone it is UTC (SAML core 1.3.3).
func parseTime(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05"} {
		if at, err := time.Parse(layout, text); err == nil && at.Unix() > 0 {
			return at.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("its validUntil %q is not a time such as 2030-01-31T12:00:00Z", cut(text))
}

var durationParts = regexp.MustCompile(`^P(?:(\d{1,9})Y)?(?:(\d{1,9})M)?(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.\d+)?S)?)?$`)

// parseDuration reads an xs:duration, in whole seconds, a month as 30 days, a year at most. It is 0 for anything else: a
// hint that cannot be read is no hint.
func parseDuration(text string) time.Duration {
	parts := durationParts.FindStringSubmatch(text)
	if parts == nil {
		return 0
	}
	const day = 24 * 60 * 60
	seconds := int64(0)
	for i, unit := range []int64{365 * day, 30 * day, day, 60 * 60, 60, 1} {
		n, _ := strconv.ParseInt(parts[i+1], 10, 64) // "" is 0
		seconds += n * unit
	}
	return time.Duration(min(seconds, 365*day)) * time.Second
}

// isTrue reads an xs:boolean.
func isTrue(text string) bool {
	text = strings.TrimSpace(text)
	return text == "true" || text == "1"
}
