package cert

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/engines"
)

// constraints are what a role wants of a certificate. Of each list that is not empty one entry has to fit, of required_extensions all. In
// each entry * stands for any text. They are stored as they are.
type constraints struct {
	AllowedNames       engines.StringList `json:"allowed_names" max:"256" help:"Of the common name, the DNS names and the email addresses one has to be among these. Prefer the fields for each of them."`
	AllowedCommonNames engines.StringList `json:"allowed_common_names" max:"256" help:"What the common name may be."`
	AllowedDNSSANs     engines.StringList `json:"allowed_dns_sans" max:"256" help:"Of the DNS names one has to be among these."`
	AllowedEmailSANs   engines.StringList `json:"allowed_email_sans" max:"256" help:"Of the email addresses one has to be among these."`
	AllowedURISANs     engines.StringList `json:"allowed_uri_sans" max:"256" help:"Of the URIs one has to be among these."`
	AllowedOrgUnits    engines.StringList `json:"allowed_organizational_units" max:"256" help:"Of the organizational units one has to be among these."`
	RequiredExtensions engines.StringList `json:"required_extensions" max:"64" help:"Extensions that must be there, as OID:TEXT, or as hex:OID:HEX for their DER."`
	MetadataExtensions engines.StringList `json:"allowed_metadata_extensions" max:"64" help:"OIDs of extensions whose text is kept as metadata, under the OID with - for each dot."`
}

func (c *constraints) fields() map[string]*engines.StringList {
	return map[string]*engines.StringList{
		"allowed_names": &c.AllowedNames, "allowed_common_names": &c.AllowedCommonNames, "allowed_dns_sans": &c.AllowedDNSSANs,
		"allowed_email_sans": &c.AllowedEmailSANs, "allowed_uri_sans": &c.AllowedURISANs, "allowed_organizational_units": &c.AllowedOrgUnits,
		"required_extensions": &c.RequiredExtensions, "allowed_metadata_extensions": &c.MetadataExtensions,
	}
}

// take sets what the request gave.
func (c *constraints) take(req *engines.Request, in constraints) {
	given := in.fields()
	for field, list := range c.fields() {
		if req.Given(field) {
			*list = *given[field]
		}
	}
}

func (c *constraints) data(into map[string]any) {
	for field, list := range c.fields() {
		into[field] = append(engines.StringList{}, *list...)
	}
}

func (c *constraints) check() error {
	var p engines.Problems
	for _, field := range slices.Sorted(maps.Keys(c.fields())) {
		for _, entry := range *c.fields()[field] {
			if entry == "" || len(entry) > 1024 {
				p.Add(field, "each entry must have 1 to 1024 bytes")
			}
		}
	}
	for _, entry := range c.RequiredExtensions {
		if oid, _, _, ok := extension(entry); !ok || !isOID(oid) {
			p.Add("required_extensions", "each entry must be OID:TEXT, or hex:OID:HEX, such as 1.2.3.4.5:staff")
		}
	}
	for _, entry := range c.MetadataExtensions {
		if !isOID(entry) {
			p.Add("allowed_metadata_extensions", "each entry must be an OID, such as 1.2.3.4.5")
		}
	}
	return p.Err()
}

// extension reads an entry of required_extensions.
func extension(entry string) (oid, pattern string, inHex, ok bool) {
	if rest, is := strings.CutPrefix(entry, "hex:"); is {
		entry, inHex = rest, true
	}
	oid, pattern, ok = strings.Cut(entry, ":")
	if inHex {
		pattern = strings.ToLower(pattern)
	}
	return oid, pattern, inHex, ok
}

// isOID reports whether the text is numbers with dots between them.
func isOID(text string) bool {
	parts := strings.Split(text, ".")
	return len(parts) > 1 && !slices.ContainsFunc(parts, func(part string) bool {
		_, err := strconv.ParseUint(part, 10, 32)
		return err != nil
	})
}

// met returns which constraint a certificate does not meet, "" if it meets them all.
func (c *constraints) met(cert *x509.Certificate) (unmet string) {
	uris := make([]string, len(cert.URIs))
	for i, u := range cert.URIs {
		uris[i] = u.String()
	}
	names := slices.Concat([]string{cert.Subject.CommonName}, cert.DNSNames, cert.EmailAddresses)
	for _, test := range []struct {
		field   string
		allowed engines.StringList
		has     []string
	}{
		{"allowed_names", c.AllowedNames, names},
		{"allowed_common_names", c.AllowedCommonNames, []string{cert.Subject.CommonName}},
		{"allowed_dns_sans", c.AllowedDNSSANs, cert.DNSNames},
		{"allowed_email_sans", c.AllowedEmailSANs, cert.EmailAddresses},
		{"allowed_uri_sans", c.AllowedURISANs, uris},
		{"allowed_organizational_units", c.AllowedOrgUnits, cert.Subject.OrganizationalUnit},
	} {
		if len(test.allowed) > 0 && !slices.ContainsFunc(test.allowed, func(pattern string) bool {
			return slices.ContainsFunc(test.has, func(name string) bool { return fits(pattern, name) })
		}) {
			return test.field
		}
	}
	for _, entry := range c.RequiredExtensions {
		oid, pattern, inHex, ok := extension(entry)
		if !ok || !slices.ContainsFunc(cert.Extensions, func(e pkix.Extension) bool {
			return e.Id.String() == oid && (inHex && fits(pattern, hex.EncodeToString(e.Value)) || !inHex && fits(pattern, extensionText(e)))
		}) {
			return "required_extensions"
		}
	}
	return ""
}

// extensionText is the text that an extension holds, "" if it holds something else.
func extensionText(e pkix.Extension) string {
	var text string
	if rest, err := asn1.Unmarshal(e.Value, &text); err != nil || len(rest) > 0 {
		return ""
	}
	return text
}

// fits reports whether a name is as a pattern says, in which each * stands for any text.
func fits(pattern, name string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	for _, part := range parts[:len(parts)-1] {
		if _, name, ok = strings.Cut(name, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(name, parts[len(parts)-1])
}
