package conformance_test

import (
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
	"github.com/openbao/openbao/api/v2"
)

// sso is a SAML method, as a client sees it, and the identity provider that it trusts.
type sso struct {
	x    *tour
	c    client // of the operator, in the method's namespace
	at   string // path of the method, with its slash
	acs  string
	path string // of acs
	idp  *samltest.IdP
}

const spEntity = "https://coffer.example.com/saml"

// sso makes a method in a namespace ("" or "a"), without a configuration.
func (x *tour) sso(t *testing.T, c client, ns, mount string) *sso {
	t.Helper()
	path := "/v1/" + ns + "auth/" + mount + "/callback"
	return &sso{x: x, c: c, at: "auth/" + mount + "/", acs: x.Nodes[0].URL + path, path: path, idp: samltest.New(t)}
}

func (s *sso) configure(t *testing.T, more map[string]any) *api.Secret {
	t.Helper()
	all := map[string]any{
		"idp_sso_url": s.idp.SSOURL, "idp_entity_id": s.idp.EntityID, "idp_cert": s.idp.CertificatePEM(),
		"entity_id": spEntity, "acs_urls": []string{s.acs},
	}
	maps.Copy(all, more)
	answer, err := s.c.write(s.at+"config", all)
	noErr(t, err)
	return answer
}

// verifierOf is what a client keeps to itself: the web UI makes a UUID.
const verifierOf = "5e8e1f3c-8b1a-4f3c-9d3e-0c2d2f5d7a11"

func challengeOf(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// start begins a login. The role is always there, as the clients send it: empty if the user gave none.
func (s *sso) start(t *testing.T, role, clientType string) (ssoURL, pollID string) {
	t.Helper()
	d := data(t)(s.c.as("").write(s.at+"sso_service_url", map[string]any{
		"acs_url": s.acs, "role": role, "client_challenge": challengeOf(verifierOf), "client_type": clientType,
	}))
	ssoURL, _ = d["sso_service_url"].(string)
	pollID, _ = d["token_poll_id"].(string)
	return ssoURL, pollID
}

// post is the browser's: a form, to the URL that the request named.
func (s *sso) post(t *testing.T, form url.Values) harness.Answer {
	t.Helper()
	return s.x.raw(t, s.x.node(), "POST", s.path, "", []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
}

func (s *sso) confirm(t *testing.T, ssoURL string, u samltest.User) harness.Answer {
	t.Helper()
	a := s.click(t, s.post(t, s.idp.Answer(ssoURL, u)))
	if a.Status != 200 {
		t.Fatalf("the callback answered %d: %.300s", a.Status, a.Body)
	}
	return a
}

// click says yes where the page asks whether the login is the user's, and returns the page after it.
func (s *sso) click(t *testing.T, page harness.Answer) harness.Answer {
	t.Helper()
	if value := samltest.Confirmation(page.Body); value != "" {
		return s.post(t, url.Values{"confirmation": {value}, "decision": {"confirm"}})
	}
	return page
}

// redeem asks for the token.
func (s *sso) redeem(c client, pollID string) (*api.Secret, error) {
	return c.write(s.at+"token", map[string]any{"client_verifier": verifierOf, "token_poll_id": pollID})
}

// login goes the whole way.
func (s *sso) login(t *testing.T, role string, u samltest.User) *api.SecretAuth {
	t.Helper()
	ssoURL, pollID := s.start(t, role, "browser")
	s.confirm(t, ssoURL, u)
	return auth(t)(s.redeem(s.c.as(""), pollID))
}

var carol = samltest.User{Subject: "carol@example.com", Attributes: map[string][]string{"groups": {"staff", "auditors"}, "department": {"finance"}}}

// saml is the flow that the family's UI, command line and Terraform provider go through.
func (x *tour) saml(t *testing.T) {
	mount := x.my("sso")
	s := x.sso(t, x.root, "", mount)
	accessor := x.method(t, x.root, mount, "saml")
	t.Run("config", func(t *testing.T) { x.samlConfig(t, s) })
	t.Run("role as Terraform has it", func(t *testing.T) { x.samlRole(t, s) })
	s.configure(t, map[string]any{"default_role": "dev"})
	done(t)(x.root.write(s.at+"role/dev", map[string]any{
		"bound_attributes": map[string]string{"groups": "staff"}, "groups_attribute": "groups", "token_policies": "dev", "token_ttl": "20m",
		"alias_metadata": map[string]string{"office": x.my("north")},
	}))
	t.Run("start", func(t *testing.T) { x.samlStart(t, s) })
	t.Run("poll", func(t *testing.T) { x.samlPoll(t, s) })
	t.Run("callback", func(t *testing.T) { x.samlCallback(t, s) })
	t.Run("token", func(t *testing.T) { x.samlToken(t, s, mount) })
	t.Run("reuse", func(t *testing.T) {
		ssoURL, pollID := s.start(t, "", "cli")
		s.confirm(t, ssoURL, carol)
		auth(t)(s.redeem(x.root.as(""), pollID))
		_, err := s.redeem(x.root.as(""), pollID)
		says(t, err, 400, "expired")
	})
	t.Run("wrapped", func(t *testing.T) {
		ssoURL, pollID := s.start(t, "dev", "cli")
		// The answer of one that waits is no secret: it is an error as it is, and not wrapped.
		_, err := s.redeem(x.root.as("").wrapped("60s"), pollID)
		refused(t, err, 401)
		s.confirm(t, ssoURL, carol)
		w := wrap(t)(s.redeem(x.root.as("").wrapped("60s"), pollID))
		a := auth(t)(x.root.as("").unwrap(w.Token))
		same(t, "creation path, wrapped accessor", []string{w.CreationPath, w.WrappedAccessor}, []string{s.at + "token", a.Accessor})
		same(t, "alive", x.alive(t, x.root.as(a.ClientToken)), true)
	})
	t.Run("renewal", func(t *testing.T) { x.samlRenewal(t, s) })
	t.Run("groups", func(t *testing.T) { x.samlGroups(t, s, accessor) })
	t.Run("templated policy", func(t *testing.T) { x.samlTemplate(t, s, accessor) })
	t.Run("second factor", func(t *testing.T) { x.samlFactor(t, s, accessor) })
	t.Run("namespace", x.samlNamespace)
	t.Run("documented", func(t *testing.T) { x.samlDocumented(t, s) })
}

// samlConfig writes as Terraform does, with everything in one body, and as the documentation's recipes do, with commas.
func (x *tour) samlConfig(t *testing.T, s *sso) {
	c := x.root.with("X-Vault-Consistency", "linearizable") // it does not know of what x.raw writes
	absent(t)(c.read(s.at + "config"))
	other := "http://127.0.0.1:8200" + s.path
	explicit := map[string]any{
		"idp_sso_url": s.idp.SSOURL, "idp_entity_id": s.idp.EntityID, "idp_cert": s.idp.CertificatePEM(), "entity_id": spEntity,
		"acs_urls": []any{s.acs, other}, "default_role": "", "verbose_logging": false,
		"validate_response_signature": false, "validate_assertion_signature": false,
	}
	want := map[string]any{
		"idp_sso_url": s.idp.SSOURL, "idp_entity_id": s.idp.EntityID, "idp_cert": s.idp.CertificatePEM(), "entity_id": spEntity,
		"acs_urls": []any{s.acs, other}, "verbose_logging": false, "validate_response_signature": false, "validate_assertion_signature": false,
		"sign_authn_requests": false, "allow_idp_initiated": false, "case_sensitive_names": false,
	}
	put := x.raw(t, x.node(), "PUT", "/v1/"+s.at+"config", x.RootToken, explicit)
	same(t, "status of a PUT with a URL without TLS", put.Status, 200)
	var answer struct{ Warnings []string }
	put.Decode(t, &answer)
	if len(answer.Warnings) != 2 || !strings.Contains(answer.Warnings[0], other) || !strings.Contains(answer.Warnings[1], "name_id_format") {
		t.Errorf("warnings %q", answer.Warnings)
	}
	same(t, "config", data(t)(c.read(s.at+"config")), want)
	explicit["name_id_format"], want["name_id_format"] = "unspecified", "urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified"
	explicit["acs_urls"] = s.acs + ", https://eu.example.com" + s.path
	want["acs_urls"] = []any{s.acs, "https://eu.example.com" + s.path}
	post := x.raw(t, x.node(), "POST", "/v1/"+s.at+"config", x.RootToken, explicit)
	same(t, "status and body of a POST", []any{post.Status, string(post.Body)}, []any{204, ""})
	same(t, "config", data(t)(c.read(s.at+"config")), want)
	// The recipe for support sends nothing but these.
	done(t)(c.write(s.at+"config", map[string]any{"default_role": "tf", "verbose_logging": true}))
	want["default_role"], want["verbose_logging"] = "tf", true
	same(t, "config", data(t)(c.read(s.at+"config")), want)
	_, err := c.write(s.at+"config", map[string]any{"idp_metadata_url": "https://idp.example.com/metadata", "idp_issuer": "x"})
	says(t, err, 400, "mutually exclusive")
	done(t)(c.write(s.at+"config", map[string]any{"idp_metadata_url": "https://idp.example.com/metadata", "verbose_logging": false}))
	d := data(t)(c.read(s.at + "config"))
	same(t, "keys", slices.Sorted(maps.Keys(d)), []string{
		"acs_urls", "allow_idp_initiated", "case_sensitive_names", "default_role", "entity_id", "idp_metadata_url", "name_id_format", "sign_authn_requests",
		"validate_assertion_signature", "validate_response_signature", "verbose_logging",
	})
}

// samlRole writes what the Terraform provider's resource does: maps have texts with commas, and read back as lists that the
// provider joins, so that their order has to stay. "name" is in its body, too.
func (x *tour) samlRole(t *testing.T, s *sso) {
	c := x.root.with("X-Vault-Consistency", "linearizable")
	absent(t)(c.list(s.at + "role"))
	absent(t)(c.read(s.at + "role/tf"))
	put := x.raw(t, x.node(), "PUT", "/v1/"+s.at+"role/tf", x.RootToken, map[string]any{
		"name": "tf", "bound_attributes": map[string]string{"groups": "zeta,alpha", "department": "finance"}, "bound_attributes_type": "string",
		"bound_subjects": []string{"*@example.com", "root@example.org"}, "bound_subjects_type": "glob", "groups_attribute": "groups",
		"token_policies": []string{"Writer", "reader", "writer"}, "token_ttl": 3600, "token_max_ttl": 7200, "token_bound_cidrs": []string{"127.0.0.1"},
		"token_explicit_max_ttl": 0, "token_no_default_policy": false, "token_num_uses": 0, "token_period": 0, "token_type": "default",
	})
	if put.Status != 204 {
		t.Fatalf("status %d: %s", put.Status, put.Body)
	}
	got := data(t)(c.read(s.at + "role/tf"))
	fields(t, got, map[string]any{
		"bound_attributes": map[string]any{"groups": []any{"zeta", "alpha"}, "department": []any{"finance"}}, "bound_attributes_type": "string",
		"bound_subjects": []string{"*@example.com", "root@example.org"}, "bound_subjects_type": "glob", "groups_attribute": "groups",
		"token_policies": []string{"reader", "writer"}, "token_ttl": 3600, "token_max_ttl": 7200, "token_bound_cidrs": []string{"127.0.0.1"},
		"token_explicit_max_ttl": 0, "token_no_default_policy": false, "token_num_uses": 0, "token_period": 0, "token_type": "default",
		"alias_metadata": map[string]any{}, "require_same_address": false,
	})
	if _, named := got["name"]; named {
		t.Errorf("the role's name is in its data")
	}
	// Samples in documents have the older names.
	done(t)(c.write(s.at+"role/old", map[string]any{"bound_subjects": "a,b", "policies": "dev,prod", "ttl": "1h", "max_ttl": "2h"}))
	fields(t, data(t)(c.read(s.at+"role/old")), map[string]any{
		"bound_subjects": []string{"a", "b"}, "bound_subjects_type": "string", "bound_attributes": map[string]any{}, "groups_attribute": "",
		"token_policies": []string{"dev", "prod"}, "policies": []string{"dev", "prod"}, "token_ttl": 3600, "token_max_ttl": 7200,
	})
	same(t, "roles", texts(data(t)(c.list(s.at + "role"))["keys"]), []string{"old", "tf"})
	for range 2 { // also one that is missing
		gone := x.raw(t, x.node(), "DELETE", "/v1/"+s.at+"role/old", x.RootToken, nil)
		same(t, "status and body of a DELETE", []any{gone.Status, string(gone.Body)}, []any{204, ""})
	}
	absent(t)(c.read(s.at + "role/old"))
}

func (x *tour) samlStart(t *testing.T, s *sso) {
	for _, method := range []string{"POST", "PUT"} { // the older UI puts
		a := x.raw(t, x.node(), method, "/v1/"+s.at+"sso_service_url", "", map[string]any{
			"acs_url": s.acs, "role": "", "client_challenge": challengeOf(verifierOf), "client_type": "browser",
		})
		same(t, "status", a.Status, 200)
		var out struct {
			RequestID string `json:"request_id"`
			Data      map[string]any
			Auth      any
		}
		a.Decode(t, &out)
		if id, _ := out.Data["token_poll_id"].(string); !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(id) {
			t.Errorf("token_poll_id %q", id)
		}
		target, _ := out.Data["sso_service_url"].(string)
		r, err := samltest.ParseRequest(target)
		noErr(t, err)
		if !strings.HasPrefix(target, s.idp.SSOURL+"?") || r.ACSURL != s.acs || r.Issuer != spEntity || r.RelayState == "" || out.RequestID == "" || out.Auth != nil {
			t.Errorf("%s answered %s: %+v", method, a.Body, r)
		}
	}
	for field, change := range map[string]map[string]any{
		"'role'":             {"role": ""},
		`"role"`:             {"role": "nobody"},
		`"acs_url"`:          {"acs_url": s.acs + "/"},
		`"client_challenge"`: {"client_challenge": "short"},
		`"client_type"`:      {"client_type": "robot"},
	} {
		if change["role"] == "" {
			done(t)(x.root.write(s.at+"config", map[string]any{"default_role": ""}))
		}
		body := map[string]any{"acs_url": s.acs, "role": "dev", "client_challenge": challengeOf(verifierOf), "client_type": "cli"}
		maps.Copy(body, change)
		_, err := x.root.as("").write(s.at+"sso_service_url", body)
		says(t, err, 400, field)
		done(t)(x.root.write(s.at+"config", map[string]any{"default_role": "dev"}))
	}
}

// samlPoll: 401 as long as there is hope and nothing else, because clients go on at 401 only.
func (x *tour) samlPoll(t *testing.T, s *sso) {
	_, pollID := s.start(t, "dev", "browser")
	for _, method := range []string{"POST", "PUT"} {
		a := x.raw(t, x.node(), method, "/v1/"+s.at+"token", "", map[string]any{"client_verifier": verifierOf, "token_poll_id": pollID})
		if same(t, "status", a.Status, 401); len(a.Errors()) != 1 || a.Errors()[0] == "" {
			t.Errorf("the body is %s", a.Body)
		}
	}
	_, err := s.redeem(x.root.as(""), pollID)
	says(t, err, 401, "not finished")
	_, err = s.redeem(x.root, pollID) // a token changes nothing
	refused(t, err, 401)
	for _, body := range []map[string]any{
		{"client_verifier": "another", "token_poll_id": pollID},
		{"client_verifier": verifierOf, "token_poll_id": "5e8e1f3c-8b1a-4f3c-9d3e-0c2d2f5d7a11"},
		{"client_verifier": verifierOf},
		{"token_poll_id": pollID},
	} {
		_, err := x.root.as("").write(s.at+"token", body)
		refused(t, err, 400)
	}
	_, pollID = s.start(t, "dev", "browser")
	_, err = s.redeem(x.root.as(""), pollID)
	refused(t, err, 401)
	ssoURL, pollID := s.start(t, "dev", "browser")
	stranger := s.post(t, s.idp.Answer(ssoURL, samltest.User{Subject: "mallory@example.com", Attributes: map[string][]string{"groups": {"visitors"}}}))
	same(t, "status for somebody whom the role excludes", stranger.Status, 403)
	_, err = s.redeem(x.root.as(""), pollID)
	says(t, err, 403, "groups")
}

func (x *tour) samlCallback(t *testing.T, s *sso) {
	html := func(a harness.Answer) {
		t.Helper()
		if kind := a.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/html") || !strings.Contains(a.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("header %v", a.Header)
		}
	}
	visible := func(a harness.Answer) string {
		body := regexp.MustCompile(`(?s)<(style|title)>.*?</(style|title)>`).ReplaceAllString(string(a.Body), "")
		return strings.TrimSpace(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, ""))
	}
	cliURL, cliPoll := s.start(t, "dev", "cli")
	page := s.confirm(t, cliURL, carol)
	pages := []harness.Answer{page}
	html(page)
	if !strings.Contains(visible(page), "terminal") || !strings.Contains(visible(page), carol.Subject) {
		t.Errorf("the page for a terminal says %q", visible(page))
	}
	browserURL, browserPoll := s.start(t, "dev", "browser")
	page = s.confirm(t, browserURL, carol)
	if html(page); visible(page) != "" {
		t.Errorf("the page for a browser says %q", visible(page))
	}
	jsonURL, jsonPoll := s.start(t, "dev", "cli")
	form := s.idp.Answer(jsonURL, carol)
	page = x.raw(t, x.node(), "POST", s.path, "", map[string]any{"RelayState": form.Get("RelayState"), "SAMLResponse": form.Get("SAMLResponse")})
	html(page)
	same(t, "status of a callback with JSON", page.Status, 200)
	pages = append(pages, page)
	page = s.click(t, page)
	pages = append(pages, page)
	for _, pollID := range []string{cliPoll, browserPoll, jsonPoll} {
		a := auth(t)(s.redeem(x.root.as(""), pollID))
		for _, page := range pages {
			if strings.Contains(string(page.Body), a.ClientToken) || strings.Contains(string(page.Body), pollID) {
				t.Errorf("the page holds a secret")
			}
		}
	}
	again := s.post(t, form)
	html(again)
	same(t, "status of an answer that comes twice", again.Status, 400)
	for _, why := range []string{"assertion", "replay", "answered", "unknown"} {
		if strings.Contains(visible(again), why) {
			t.Errorf("the page says why: %q", visible(again))
		}
	}
}

func (x *tour) samlToken(t *testing.T, s *sso, mount string) {
	a := s.login(t, "DEV", carol) // names of roles are in any case
	same(t, "metadata", a.Metadata, map[string]string{"role": "dev"})
	same(t, "policies", [][]string{a.TokenPolicies, a.Policies}, [][]string{{"default", "dev"}, {"default", "dev"}})
	same(t, "ttl, renewable, orphan", []any{a.LeaseDuration, a.Renewable, a.Orphan}, []any{1200, true, true})
	if a.EntityID == "" || a.Accessor == "" || a.MFARequirement != nil {
		t.Errorf("%+v", a)
	}
	me := data(t)(x.root.as(a.ClientToken).lookupSelf())
	fields(t, me, map[string]any{
		"path": s.at + "token", "display_name": mount + "-" + carol.Subject, "orphan": true, "entity_id": a.EntityID, "type": "service",
		"meta": map[string]any{"role": "dev"}, "policies": []string{"default", "dev"}, "num_uses": 0,
	})
	ssoURL, pollID := s.start(t, "", "cli")
	s.confirm(t, ssoURL, carol)
	raw := x.raw(t, x.node(), "PUT", "/v1/"+s.at+"token", "", map[string]any{"client_verifier": verifierOf, "token_poll_id": pollID})
	var out struct {
		Data any
		Auth map[string]any
	}
	same(t, "status", raw.Status, 200)
	raw.Decode(t, &out)
	same(t, "data, token_type, orphan, num_uses, metadata", []any{out.Data, out.Auth["token_type"], out.Auth["orphan"], out.Auth["num_uses"], out.Auth["metadata"]},
		[]any{nil, "service", true, 0.0, map[string]any{"role": "dev"}})
	same(t, "the same person", out.Auth["entity_id"], any(a.EntityID))
}
