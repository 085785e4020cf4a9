package cert

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
)

type loginIn struct {
	Name string `json:"name" max:"128" help:"The role to log in with. Without it the first one that accepts the certificate is taken, by name."`
}

// errLogin is the answer to every client whose certificate does not log in. The cause goes to the log, and into the audit log if the
// configuration says so.
func errLogin(cause error, reason string) error {
	if errors.Is(cause, errNone) {
		return engines.Invalid("missing client certificate: the connection has shown none. The server asks for one while there is an auth " +
			"method of this type and the listener allows it: give the client its certificate and key, and connect again")
	}
	return &engines.Error{Kind: engines.KindInvalid, Detail: "invalid certificate: no role accepts it", Err: cause, Reason: reason}
}

// kept is what a token keeps for its renewals, as JSON. The key and the issuer are those of the certificate that logged in.
type kept struct {
	Format int    `json:"format"` // 1
	Key    []byte `json:"key"`    // hash of the public key with its type
	Issuer []byte `json:"issuer"` // hash of the issuer's name
	Serial string `json:"serial"`
}

func keyOf(c *x509.Certificate) []byte {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return sum[:]
}

func (e *engine) login(ctx context.Context, req *engines.Request, in *loginIn) (*engines.Response, error) {
	c, err := getConfig(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	v, err := e.current(ctx, req.Mount.Storage)
	if err != nil {
		return nil, err
	}
	shown := engines.CertificatesOf(ctx)
	t, err := v.match(shown, strings.ToLower(in.Name), time.Now())
	if err != nil {
		counts.refused.Add(1)
		reason := ""
		if c.MetadataOnFailure && len(shown) > 0 && !errors.Is(err, errSerial) {
			reason = fmt.Sprintf("%v; common_name=%q serial_number=%s subject_key_id=%s authority_key_id=%s", err,
				cut(shown[0].Subject.CommonName), shown[0].SerialNumber, cut(pairs(shown[0].SubjectKeyId)), cut(pairs(shown[0].AuthorityKeyId)))
		}
		return nil, errLogin(err, reason)
	}
	leaf := shown[0]
	metadata := t.metadata(leaf)
	internal, err := json.Marshal(kept{Format: 1, Key: keyOf(leaf), Issuer: issuerBytes(leaf), Serial: leaf.SerialNumber.String()})
	if err != nil {
		return nil, err
	}
	login := &engines.Login{
		DisplayName: t.DisplayName, Alias: engines.Alias{Name: leaf.Subject.CommonName, Metadata: t.Token.AliasMetadata},
		Metadata: metadata, Token: t.Token, Role: t.name, Internal: internal,
	}
	if c.AliasMetadata {
		all := map[string]string{}
		maps.Copy(all, t.Token.AliasMetadata)
		maps.Copy(all, metadata)
		login.Alias.Metadata = all
	}
	counts.accepted.Add(1)
	return &engines.Response{Auth: &engines.Auth{Login: login}}, nil
}

func issuerBytes(c *x509.Certificate) []byte {
	of := issuerOf(c)
	return of[:]
}

// maxMetadataBytes bounds each value of a certificate that is kept.
const maxMetadataBytes = 512

// cut bounds a text of a certificate that may be a stranger's.
func cut(text string) string {
	if len(text) > maxMetadataBytes {
		return text[:maxMetadataBytes] + "…"
	}
	return text
}

// metadata describes a certificate that logs in.
func (t *trusting) metadata(leaf *x509.Certificate) map[string]string {
	m := map[string]string{
		"cert_name": t.name, "common_name": leaf.Subject.CommonName, "serial_number": leaf.SerialNumber.String(),
		"subject_key_id": pairs(leaf.SubjectKeyId), "authority_key_id": pairs(leaf.AuthorityKeyId),
	}
	for _, e := range leaf.Extensions {
		if text := extensionText(e); text != "" && slices.Contains(t.MetadataExtensions, e.Id.String()) {
			m[strings.ReplaceAll(e.Id.String(), ".", "-")] = cut(text)
		}
	}
	return m
}

// pairs writes bytes in hex, with a colon between two.
func pairs(b []byte) string {
	out := make([]string, len(b))
	for i := range b {
		out[i] = hex.EncodeToString(b[i : i+1])
	}
	return strings.Join(out, ":")
}

// LoginRole implements engines.RoleNamer. A client that names no role gets the limits of the one that accepts its certificate.
func (e *engine) LoginRole(ctx context.Context, req *engines.Request) string {
	var in map[string]json.RawMessage
	if req.Path != "login" || len(req.Body) > 0 && json.Unmarshal(req.Body, &in) != nil {
		return ""
	}
	var name string
	if raw, given := in["name"]; given && json.Unmarshal(raw, &name) != nil {
		name = string(raw) // a number, say, as the input of a login is decoded
	}
	v, err := e.current(ctx, req.Mount.Storage)
	if err != nil {
		return ""
	}
	if name = strings.ToLower(name); name != "" {
		if slices.ContainsFunc(v.roles, func(t *trusting) bool { return t.name == name }) {
			return name
		}
		return ""
	}
	if t, err := v.match(engines.CertificatesOf(ctx), "", time.Now()); err == nil {
		return t.name
	}
	return ""
}

// RenewLogin implements engines.Renewer. Unless the configuration says otherwise, the client has to show a certificate for the key that
// logged in, of the same issuer, which the role accepts now.
func (e *engine) RenewLogin(ctx context.Context, m engines.Mount, login engines.RenewedLogin) (engines.TokenFields, error) {
	none := engines.TokenFields{}
	c, err := getConfig(ctx, m.Storage)
	if err != nil {
		return none, err
	}
	v, err := e.current(ctx, m.Storage)
	if err != nil {
		return none, err
	}
	var k kept
	if err := json.Unmarshal(login.Internal, &k); err != nil || k.Format != 1 || len(k.Issuer) != sha256.Size {
		return none, fmt.Errorf("what a token of role %q kept has an unknown format", login.Role)
	}
	i := slices.IndexFunc(v.roles, func(t *trusting) bool { return t.name == login.Role })
	switch {
	case i < 0:
		return none, engines.Invalid("the token cannot be renewed: its role does not exist any more")
	case v.revoked[revocation{issuer(k.Issuer), k.Serial}]:
		return none, engines.Invalid("the token cannot be renewed: the certificate of its login has been revoked")
	}
	t := v.roles[i]
	if !slices.Equal(ownPolicies(t.Token.TokenPolicies), ownPolicies(login.Policies)) {
		return none, engines.Invalid("policies have changed, not renewing: log in again")
	}
	if c.DisableBinding || login.Waiting {
		return t.Token, nil
	}
	shown := engines.CertificatesOf(ctx)
	if _, err := v.match(shown, login.Role, time.Now()); err != nil {
		if errors.Is(err, errNone) {
			return none, errLogin(err, "")
		}
		return none, &engines.Error{Kind: engines.KindInvalid, Detail: "the token cannot be renewed: its role does not accept the client's certificate", Err: err}
	}
	if !bytes.Equal(k.Key, keyOf(shown[0])) || !bytes.Equal(k.Issuer, issuerBytes(shown[0])) {
		return none, engines.Invalid("client identity during renewal not matching client identity used during login: show the certificate of the login, or one for its key")
	}
	return t.Token, nil
}

// ownPolicies returns the names, sorted and without the one that is added to nearly every token.
func ownPolicies(names []string) []string {
	own := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "default" })
	slices.Sort(own)
	return slices.Compact(own)
}
