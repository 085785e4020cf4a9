package assertion

import "strings"

// rule says what an element may have. What is not in a rule is rejected, so nothing can be hidden in a place that one
// reader looks at and another does not.
type rule struct {
	text       bool
	attributes map[string]bool // unprefixed
	children   map[string]bool // true: any number of them; false: at most one
	foreign    bool            // attributes of foreign namespaces, too
	// open admits elements of foreign namespaces, with whatever is in them; keys those of ds, too.
	open, keys bool
}

// grammar has a rule for each element that a response needs.
var grammar = map[string]rule{
	"samlp:Response":      {attributes: words("ID Version IssueInstant Destination Consent InResponseTo"), children: words("saml:Issuer ds:Signature samlp:Extensions samlp:Status saml:Assertion")},
	"samlp:Extensions":    {open: true},
	"samlp:Status":        {children: words("samlp:StatusCode samlp:StatusMessage samlp:StatusDetail")},
	"samlp:StatusCode":    {attributes: words("Value"), children: words("samlp:StatusCode")},
	"samlp:StatusMessage": {text: true, attributes: words("Value")}, // where some put the text
	"samlp:StatusDetail":  {text: true, open: true},

	"saml:Assertion":               {attributes: words("ID Version IssueInstant"), children: words("saml:Issuer ds:Signature saml:Subject saml:Conditions saml:Advice saml:AuthnStatement* saml:AttributeStatement*")},
	"saml:Issuer":                  {text: true, attributes: words("Format NameQualifier SPNameQualifier SPProvidedID")},
	"saml:Subject":                 {children: words("saml:NameID saml:SubjectConfirmation*")},
	"saml:NameID":                  {text: true, attributes: words("Format NameQualifier SPNameQualifier SPProvidedID")},
	"saml:SubjectConfirmation":     {attributes: words("Method"), children: words("saml:NameID saml:SubjectConfirmationData")},
	"saml:SubjectConfirmationData": {attributes: words("NotBefore NotOnOrAfter Recipient InResponseTo Address"), foreign: true},
	"saml:Conditions":              {attributes: words("NotBefore NotOnOrAfter"), children: words("saml:AudienceRestriction* saml:OneTimeUse saml:ProxyRestriction")},
	// Nothing is read of an Advice. It must hold neither an assertion nor a signature, which could be taken for ours.
	"saml:Advice":                  {children: words("saml:AssertionIDRef* saml:AssertionURIRef*"), open: true},
	"saml:AssertionIDRef":          {text: true},
	"saml:AssertionURIRef":         {text: true},
	"saml:AudienceRestriction":     {children: words("saml:Audience*")},
	"saml:Audience":                {text: true},
	"saml:OneTimeUse":              {},
	"saml:ProxyRestriction":        {attributes: words("Count"), children: words("saml:Audience*")},
	"saml:AuthnStatement":          {attributes: words("AuthnInstant SessionIndex SessionNotOnOrAfter"), children: words("saml:SubjectLocality saml:AuthnContext")},
	"saml:SubjectLocality":         {attributes: words("Address DNSName")},
	"saml:AuthnContext":            {children: words("saml:AuthnContextClassRef saml:AuthnContextDecl saml:AuthnContextDeclRef saml:AuthenticatingAuthority*")},
	"saml:AuthnContextClassRef":    {text: true},
	"saml:AuthnContextDecl":        {text: true, open: true},
	"saml:AuthnContextDeclRef":     {text: true},
	"saml:AuthenticatingAuthority": {text: true},
	"saml:AttributeStatement":      {children: words("saml:Attribute*")},
	"saml:Attribute":               {attributes: words("Name NameFormat FriendlyName"), children: words("saml:AttributeValue*"), foreign: true},
	"saml:AttributeValue":          {text: true, children: words("saml:NameID"), foreign: true, open: true},

	"ds:Signature":              {attributes: words("Id"), children: words("ds:SignedInfo ds:SignatureValue ds:KeyInfo")},
	"ds:SignedInfo":             {attributes: words("Id"), children: words("ds:CanonicalizationMethod ds:SignatureMethod ds:Reference")},
	"ds:CanonicalizationMethod": {attributes: words("Algorithm"), children: words("ec:InclusiveNamespaces")},
	"ds:SignatureMethod":        {attributes: words("Algorithm")},
	"ds:Reference":              {attributes: words("Id URI Type"), children: words("ds:Transforms ds:DigestMethod ds:DigestValue")},
	"ds:Transforms":             {children: words("ds:Transform*")},
	"ds:Transform":              {attributes: words("Algorithm"), children: words("ec:InclusiveNamespaces")},
	"ec:InclusiveNamespaces":    {attributes: words("PrefixList")},
	"ds:DigestMethod":           {attributes: words("Algorithm")},
	"ds:DigestValue":            {text: true},
	"ds:SignatureValue":         {text: true, attributes: words("Id")},
	"ds:KeyInfo":                {attributes: words("Id"), open: true, keys: true},
}

// words makes the set of a list of words. Those with a star are true.
func words(list string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		name, many := strings.CutSuffix(w, "*")
		set[name] = many
	}
	return set
}

// allow checks a document against the grammar, from its root on.
func allow(root *element, name string) error {
	if root.name != name {
		return reject(Structure, "the root element is %s instead of %s", quote(root.name), name)
	}
	return allowElement(root, grammar[name])
}

func allowElement(e *element, r rule) error {
	if !r.text && strings.TrimSpace(e.text) != "" {
		return reject(Structure, "there is text in %s", e.name)
	}
	for _, a := range e.attributes {
		_, ok := r.attributes[a.name]
		if !ok && !harmless(a.name) && (!r.foreign || !strings.HasPrefix(a.name, "{")) {
			return reject(Structure, "%s must not have the attribute %s", e.name, quote(a.name))
		}
	}
	seen := map[string]bool{}
	for _, c := range e.children {
		if isEncrypted(c.name) {
			return reject(Encrypted, "%s has %s, and nothing is encrypted for us: switch encryption off at the identity provider", e.name, c.name)
		}
		many, ok := r.children[c.name]
		if !ok && r.open {
			if err := allowForeign(c, e.name, r.keys); err != nil {
				return err
			}
			continue
		}
		if !ok {
			return reject(Structure, "%s must not have the element %s", e.name, quote(c.name))
		}
		if seen[c.name] && !many {
			return reject(Structure, "%s has %s more than once", e.name, c.name)
		}
		seen[c.name] = true
		if err := allowElement(c, grammar[c.name]); err != nil {
			return err
		}
	}
	return nil
}

// harmless reports whether every element may have an attribute.
func harmless(name string) bool {
	return name == "xml:lang" || name == "xml:space" || name == "xsi:type" || name == "xsi:nil" || name == "xsi:schemaLocation"
}

// allowForeign checks an element in an open one, and what is in it: nothing that means something to us, except
// descriptions of keys.
func allowForeign(e *element, in string, keys bool) error {
	switch {
	case isEncrypted(e.name):
		return reject(Encrypted, "there is %s in %s", e.name, in)
	case keys && strings.HasPrefix(e.name, "ds:"):
		switch e.name {
		case "ds:Signature", "ds:SignedInfo", "ds:Object", "ds:Manifest", "ds:Reference", "ds:RetrievalMethod":
			return reject(Structure, "there is %s in %s", e.name, in)
		}
	case strings.HasPrefix(e.name, "saml:"), strings.HasPrefix(e.name, "samlp:"), strings.HasPrefix(e.name, "ds:"):
		return reject(Structure, "there is %s in %s", e.name, in)
	}
	for _, c := range e.children {
		if err := allowForeign(c, in, keys); err != nil {
			return err
		}
	}
	return nil
}

func isEncrypted(name string) bool {
	switch name {
	case "saml:EncryptedAssertion", "saml:EncryptedID", "saml:EncryptedAttribute", "samlp:NewEncryptedID":
		return true
	}
	return strings.HasPrefix(name, "xenc:") || strings.HasPrefix(name, "xenc11:")
}
