package registry

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/replicated/enrol"
	"github.com/coffer-project/coffer/server/replicated/entry"
	"github.com/coffer-project/coffer/server/replicated/roles"
	"github.com/coffer-project/coffer/storage"
)

// ServeHTTP is the API of a primary, as far as a secondary calls it.
func (m *member) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	token := r.Header.Get("X-Vault-Token")
	if enrol.IsToken(token) { // as the pipeline does
		wrapping, err := m.reg.WrappingToken(r.Context(), token)
		if err != nil {
			http.Error(w, `{"errors":["changed"]}`, http.StatusBadRequest)
			return
		}
		token = wrapping.Reveal()
	}
	text, ok := m.wraps[token]
	switch {
	case r.Method != http.MethodPost && r.Method != http.MethodPut, r.URL.Path != "/v1/sys/wrapping/unwrap":
		http.Error(w, `{"errors":[]}`, http.StatusNotFound)
	case !ok:
		http.Error(w, `{"errors":["wrapping token is not valid or does not exist"]}`, http.StatusBadRequest)
	default:
		delete(m.wraps, token)
		fmt.Fprintf(w, `{"request_id":"x","data":%s}`, text)
	}
}

// serve starts the primary's API, plain or with TLS, and puts its address into tokens.
func (m *member) serve(tls bool) *httptest.Server {
	s := httptest.NewUnstartedServer(m)
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it are what is tested
	if tls {
		s.StartTLS()
	} else {
		s.Start()
	}
	m.Cleanup(s.Close)
	m.addr = s.URL
	return s
}

// caOf writes the certificate of a server, which is its own CA, to a file.
func caOf(t testing.TB, s *httptest.Server) string {
	t.Helper()
	return writeFile(t, t.TempDir(), "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func writeFile(t testing.TB, dir, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// token calls secondary-token as a client does.
func (m *member) token(body string) (*engines.Response, error) {
	router := engines.NewRouter()
	engines.On(router, engines.Update, "secondary-token", "", 0, m.reg.SecondaryToken)
	return router.Handle(m.Context(), &engines.Request{Op: engines.Update, Path: "secondary-token", Body: json.RawMessage(body)})
}

// wrapping is the wrapping token in an activation token.
func (m *member) wrapping(token string) string {
	m.Helper()
	id, err := m.reg.WrappingToken(m.Context(), token)
	if err != nil {
		m.Fatal(err)
	}
	return id.Reveal()
}

func (m *member) mustToken(id string) string {
	m.Helper()
	r, err := m.token(`{"id":"` + id + `"}`)
	if err != nil {
		m.Fatal(err)
	}
	return r.Wrap.Token
}

func newSecondary(t *testing.T) *member { return newMember(t, roles.Role{Mode: roles.Disabled}) }

func (m *member) activate(a Activation) (enrol.Bundle, error) {
	m.Helper()
	before, err := m.store.Scan(m.Context(), "", "", 0)
	if err != nil {
		m.Fatal(err)
	}
	b, activateErr := m.reg.Activate(m.Context(), a)
	after, err := m.store.Scan(m.Context(), "", "", 0)
	if err != nil {
		m.Fatal(err)
	}
	if len(before) != len(after) {
		m.Errorf("an activation changed the secondary's storage: %d entries before, %d after", len(before), len(after))
	}
	for i := range after {
		if after[i].Version != before[i].Version {
			m.Errorf("an activation changed %s", after[i].Key)
		}
	}
	return b, activateErr
}

// TestSecondaryToken: without a public key the answer is wrap_info, whose token is a JSON Web Token that lives as long as
// the invitation.
func TestSecondaryToken(t *testing.T) {
	m := newPrimary(t)
	for body, ttl := range map[string]int64{
		`{"id":"a"}`: 1800, `{"id":"a","ttl":"60m"}`: 3600, `{"id":"a","ttl":1}`: 1, `{"id":"a","ttl":"768h"}`: 768 * 3600, `{"id":"a","secondary_public_key":""}`: 1800,
	} {
		r, err := m.token(body)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if r.Data != nil || r.Wrap == nil || r.Wrap.TTL != ttl || r.Wrap.CreationPath != "sys/replication/performance/primary/secondary-token" || r.Wrap.Accessor == "" || r.Wrap.WrappedAccessor != "" {
			t.Fatalf("%s: %+v", body, r)
		}
		claims, err := enrol.Parse(r.Wrap.Token)
		if err != nil {
			t.Fatal(err)
		}
		if d := claims.Exp - m.now().Unix() - ttl; d > 1 || d < -60 {
			t.Errorf("%s: the token expires %d seconds off", body, d)
		}
		if claims.Addr != m.addr || claims.SetID != "set" || claims.ID != "a" || len(claims.ClusterAddrs) != 2 || m.wraps[m.wrapping(r.Wrap.Token)] == nil {
			t.Errorf("%s: claims %+v", body, claims)
		}
		if list, _ := m.reg.List(t.Context()); len(list) != 1 || list[0].ExpiresAt.Unix() != claims.Exp {
			t.Errorf("%s: registered %+v", body, list)
		}
	}
}

// TestSecondaryTokenRefused: a clear 400 for each bad field, and nothing is registered.
func TestSecondaryTokenRefused(t *testing.T) {
	m := newPrimary(t)
	public, _, err := enrol.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	for body, part := range map[string]string{
		`{}`:                                    `"id"`,
		`{"id":""}`:                             `"id"`,
		`{"id":"a\nb"}`:                         `"id"`,
		`{"id":"a","ttl":"0"}`:                  `"ttl"`,
		`{"id":"a","ttl":"999ms"}`:              `"ttl"`,
		`{"id":"a","ttl":"769h"}`:               `"ttl"`,
		`{"id":"a","ttl":"-1h"}`:                `"ttl"`,
		`{"id":"a","ttl":"soon"}`:               `"ttl"`,
		`{"id":"a","secondary_public_key":"x"}`: `"secondary_public_key"`,
		`{"id":"a","secondary_public_key":"` + public[:40] + `"}`:              `"secondary_public_key"`,
		`{"id":"a","secondary_public_key":"` + strings.Repeat("A", 43) + `="}`: `"secondary_public_key"`,
	} {
		_, err := m.token(body)
		refused(t, body, err, engines.KindInvalid, part)
	}
	if list, _ := m.reg.List(t.Context()); len(list) != 0 {
		t.Errorf("registered: %+v", list)
	}
	m.enrolled("berlin", "c1")
	_, err = m.token(`{"id":"berlin"}`)
	refused(t, "a duplicate active id", err, engines.KindInvalid, `"id"`)
	m.become(roles.Role{Mode: roles.Secondary})
	_, err = m.token(`{"id":"a"}`)
	refused(t, "on a secondary", err, engines.KindInvalid, "not a primary")
	m.become(roles.Role{Mode: roles.Disabled})
	_, err = m.token(`{"id":"a"}`)
	refused(t, "on a disabled cluster", err, engines.KindInvalid, "not a primary")

	m.become(primary())
	m.addrs = nil
	_, err = m.token(`{"id":"a"}`)
	refused(t, "without an address", err, engines.KindUnavailable, "primary_cluster_addr")
}

// TestActivateOverHTTPS goes the whole way from token to admission, with each way to name the CA of the API.
func TestActivateOverHTTPS(t *testing.T) {
	p := newPrimary(t)
	server := p.serve(true)
	file := caOf(t, server)
	dir := t.TempDir()
	writeFile(t, dir, "notes.txt", []byte("not a certificate"))
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir, "hash.0", text)
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, a := range []Activation{
		{CAFile: file}, {CAPath: dir}, {CAFile: file, CAPath: dir},
		{CAFile: file, PrimaryAPIAddr: server.URL + "/"},
	} {
		id := fmt.Sprint("s", i)
		a.Token = engines.Sensitive(" " + p.mustToken(id) + "\n")
		b, err := newSecondary(t).activate(a)
		if err != nil {
			t.Fatal(err)
		}
		if b.SetID != "set" || b.SecondaryID != id || b.APIAddr != server.URL || len(b.Addrs) != 2 {
			t.Errorf("bundle of %s", b.SecondaryID)
		}
		req, _ := request(t, id, "c"+id, b.Secret)
		reply, err := p.reg.Enrol(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.reg.Admit(t.Context(), certOf(t, reply.Cert)); err != nil {
			t.Error(err)
		}
	}
}

// TestActivatePlain: addresses without TLS are allowed, and primary_api_addr overrides what the token says.
func TestActivatePlain(t *testing.T) {
	p := newPrimary(t)
	server := p.serve(false)
	p.addr = "http://nobody.invalid:1"
	token := p.mustToken("berlin")
	if _, err := newSecondary(t).activate(Activation{Token: engines.Sensitive(token), PrimaryAPIAddr: server.URL}); err != nil {
		t.Error(err)
	}
	p.addr = ""
	token = p.mustToken("paris")
	_, err := newSecondary(t).activate(Activation{Token: engines.Sensitive(token)})
	refused(t, "no address", err, engines.KindInvalid, `"primary_api_addr"`)
	if _, err := newSecondary(t).activate(Activation{Token: engines.Sensitive(token), PrimaryAPIAddr: server.URL}); err != nil {
		t.Error(err)
	}
}

// TestActivateRefused: nothing changes, and the text says what to do.
func TestActivateRefused(t *testing.T) {
	p, s := newPrimary(t), newSecondary(t)
	server := p.serve(true)
	file := caOf(t, server)
	foreign := newPrimary(t)
	foreign.addr = server.URL
	empty := t.TempDir()
	noCert := writeFile(t, t.TempDir(), "x.pem", []byte("nothing"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "https://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	otherCA := writeFile(t, t.TempDir(), "other.pem", selfSigned(t))
	token := engines.Sensitive(p.mustToken("berlin"))
	used := engines.Sensitive(p.mustToken("used"))
	if _, err := s.activate(Activation{Token: used, CAFile: file}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		a    Activation
		part string
	}{
		{"no token", Activation{}, `"token"`},
		{"noise", Activation{Token: "a.b.c"}, `"token"`},
		{"cut", Activation{Token: token[:len(token)-9]}, `"token"`},
		{"too long", Activation{Token: engines.Sensitive(strings.Repeat("a", 1<<20))}, `"token"`},
		{"encrypted, without a key here", Activation{Token: "AQID"}, "generate-public-key"},
		{"used", Activation{Token: used, CAFile: file}, "already used, has expired or is of another cluster"},
		{"of another cluster", Activation{Token: engines.Sensitive(foreign.mustToken("berlin")), CAFile: file}, "already used, has expired or is of another cluster"},
		{"bad address", Activation{Token: token, PrimaryAPIAddr: "p.example:8200"}, `"primary_api_addr"`},
		{"address of another scheme", Activation{Token: token, PrimaryAPIAddr: "file:///etc/passwd"}, `"primary_api_addr"`},
		{"address with a password", Activation{Token: token, PrimaryAPIAddr: "https://a:b@p.example"}, `"primary_api_addr"`},
		{"address with a query", Activation{Token: token, PrimaryAPIAddr: "https://p.example?x=1"}, `"primary_api_addr"`},
		{"nobody there", Activation{Token: token, PrimaryAPIAddr: closed, CAFile: file}, closed},
		{"system roots", Activation{Token: token}, `"ca_file"`},
		{"wrong CA", Activation{Token: token, CAFile: otherCA}, server.URL},
		{"no such file", Activation{Token: token, CAFile: "/does/not/exist"}, `"ca_file"`},
		{"a directory as a file", Activation{Token: token, CAFile: empty}, `"ca_file"`},
		{"a file without a certificate", Activation{Token: token, CAFile: noCert}, `"ca_file"`},
		{"no such directory", Activation{Token: token, CAPath: "/does/not/exist"}, `"ca_path"`},
		{"a directory without a certificate", Activation{Token: token, CAPath: empty}, `"ca_path"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := s.activate(test.a)
			refused(t, test.name, err, engines.KindInvalid, test.part)
			if err != nil && test.a.Token != "" && len(test.a.Token) > 20 && strings.Contains(err.Error(), test.a.Token.Reveal()[:20]) {
				t.Error("the error shows the token")
			}
		})
	}
	s.pass(2 * time.Hour)
	_, err = s.activate(Activation{Token: token, CAFile: file})
	refused(t, "expired", err, engines.KindInvalid, "expired")
	s.pass(-2 * time.Hour)
	if _, err := s.activate(Activation{Token: token, CAFile: file}); err != nil {
		t.Errorf("after all refusals the token is still good: %v", err)
	}
}

// selfSigned returns a certificate that has signed nothing else.
func selfSigned(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "other"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestUnwrapAnswers: whatever answers at the address, the operator learns which address it was.
func TestUnwrapAnswers(t *testing.T) {
	tests := []struct {
		name   string
		status int
		body   string
		part   string
	}{
		{"refused", 400, `{"errors":["x"]}`, "already used"},
		{"denied", 403, `{"errors":["permission denied"]}`, "already used"},
		{"sealed", 503, `{"errors":["sealed"]}`, "sealed"},
		{"broken", 500, ``, "status 500"},
		{"another service", 404, `<html>`, "status 404"},
		{"no JSON", 200, `<html>`, "does not answer like"},
		{"no data", 200, `{}`, "does not answer like"},
		{"null", 200, `{"data":null}`, "does not belong"},
		{"another's data", 200, `{"data":{"password":"p"}}`, "does not belong"},
		{"too much", 200, `{"data":"` + strings.Repeat("x", 1<<20) + `"}`, "more than"},
		{"redirect to nowhere", 307, ``, "redirect"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				fmt.Fprint(w, test.body)
			}))
			defer server.Close()
			p := newPrimary(t)
			p.addr = server.URL
			_, err := newSecondary(t).activate(Activation{Token: engines.Sensitive(p.mustToken("berlin"))})
			refused(t, test.name, err, engines.KindInvalid, test.part)
			if err != nil && (!strings.Contains(err.Error(), server.URL) || strings.Contains(err.Error(), "hvs.")) {
				t.Errorf("%v: want the address, and not the wrapping token", err)
			}
		})
	}
}

// TestBundleOfAnother: a bundle that is complete but not what the token stands for is refused, so no party in between can
// put another CA, set or secondary in its place.
func TestBundleOfAnother(t *testing.T) {
	foreign := newPrimary(t)
	foreign.addr = "http://127.0.0.1:1"
	foreignToken := foreign.mustToken("berlin")
	var foreignBundle enrol.Bundle
	if err := json.Unmarshal(foreign.wraps[foreign.wrapping(foreignToken)], &foreignBundle); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*enrol.Bundle){
		"CA":        func(b *enrol.Bundle) { b.CA = foreignBundle.CA },
		"set":       func(b *enrol.Bundle) { b.SetID = "other" },
		"secondary": func(b *enrol.Bundle) { b.SecondaryID = "paris" },
		"secret":    func(b *enrol.Bundle) { b.Secret = "" },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPrimary(t)
			p.serve(false)
			token := p.mustToken("berlin")
			var b enrol.Bundle
			if err := json.Unmarshal(p.wraps[p.wrapping(token)], &b); err != nil {
				t.Fatal(err)
			}
			edit(&b)
			p.wraps[p.wrapping(token)] = entry.Encode(&b)
			_, err := newSecondary(t).activate(Activation{Token: engines.Sensitive(token)})
			refused(t, name, err, engines.KindInvalid, "does not belong to the activation token")
		})
	}
}

// TestChangedTokenUsesNothingUp: whatever is changed in a copy of an activation token, the token itself still works; and the
// wrapping token cannot be used by who has only a part of it.
func TestChangedTokenUsesNothingUp(t *testing.T) {
	p := newPrimary(t)
	p.serve(false)
	token := p.mustToken("berlin")
	claims, err := enrol.Parse(token)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(claims.JTI, p.wrapping(token)) {
		t.Error("the wrapping token can be read in the activation token")
	}
	parts := strings.Split(token, ".")
	edit := func(change func(map[string]any)) string {
		text, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err != nil {
			t.Fatal(err)
		}
		var all map[string]any
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		change(all)
		return parts[0] + "." + base64.RawURLEncoding.EncodeToString(entry.Encode(all)) + "." + parts[2]
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		t.Fatal(err)
	}
	signature[7] ^= 1
	for name, changed := range map[string]string{
		"signature": parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(signature),
		"id":        edit(func(c map[string]any) { c["id"] = "paris" }),
		"set":       edit(func(c map[string]any) { c["set_id"] = "other" }),
		"lifetime":  edit(func(c map[string]any) { c["exp"] = time.Now().Add(24 * time.Hour).Unix() }),
		"CA":        edit(func(c map[string]any) { c["ca"] = strings.Repeat("0", 64) }),
		"addresses": edit(func(c map[string]any) { c["cluster_addrs"] = []string{"evil.example:8201"} }),
		"sealed id": edit(func(c map[string]any) { c["jti"] = claims.JTI[:len(claims.JTI)-2] + "AA" }),
		"bare id":   edit(func(c map[string]any) { c["jti"] = strings.TrimPrefix(claims.JTI, "s1:") }),
	} {
		_, err := newSecondary(t).activate(Activation{Token: engines.Sensitive(changed)})
		refused(t, name, err, engines.KindInvalid, "unchanged copy")
		if len(p.wraps) != 1 {
			t.Fatalf("%s: the changed copy has used the token up", name)
		}
	}
	if _, err := newSecondary(t).activate(Activation{Token: engines.Sensitive(token)}); err != nil {
		t.Errorf("the token itself: %v", err)
	}
}

// TestUnwrapRedirects: another node of the primary is followed to, a loop ends, and TLS is not left.
func TestUnwrapRedirects(t *testing.T) {
	p := newPrimary(t)
	active := p.serve(true)
	activeCA := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: active.Certificate().Raw})
	var hops atomic.Int32
	to := func(status int, target func(r *http.Request) string, tls bool) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hops.Add(1)
			http.Redirect(w, r, target(r), status)
		}))
		if tls {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		return s
	}
	plain := newPrimary(t)
	plainServer := plain.serve(false)
	same := func(base string) func(*http.Request) string {
		return func(r *http.Request) string { return base + r.URL.Path }
	}
	loop := to(http.StatusTemporaryRedirect, func(r *http.Request) string { return r.URL.Path }, true)
	tests := []struct {
		name string
		via  *httptest.Server
		from *member
		part string // "": it works
	}{
		{"standby, 307", to(http.StatusTemporaryRedirect, same(active.URL), true), p, ""},
		{"standby, 308", to(http.StatusPermanentRedirect, same(active.URL), true), p, ""},
		{"plain standby", to(http.StatusTemporaryRedirect, same(active.URL), false), p, ""},
		{"a redirect that drops the call", to(http.StatusFound, same(active.URL), true), p, "does not keep the call"},
		{"out of TLS", to(http.StatusTemporaryRedirect, same(plainServer.URL), true), plain, "without TLS"},
		{"a loop", loop, p, "more than 5 times"},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			hops.Store(0)
			file := activeCA
			if test.via.TLS != nil {
				file = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: test.via.Certificate().Raw}), activeCA...)
			}
			_, err := newSecondary(t).activate(Activation{
				Token: engines.Sensitive(test.from.mustToken(fmt.Sprint("s", i))), PrimaryAPIAddr: test.via.URL,
				CAFile: writeFile(t, t.TempDir(), "ca.pem", file),
			})
			if test.part == "" && err != nil {
				t.Error(err)
			} else if test.part != "" {
				refused(t, test.name, err, engines.KindInvalid, test.part)
			}
			if n := hops.Load(); n > maxRedirects+1 {
				t.Errorf("%d hops", n)
			}
		})
	}
}

// TestUnwrapEnds: a primary that does not answer does not hold the request for ever.
func TestUnwrapEnds(t *testing.T) {
	p := newPrimary(t)
	release := make(chan struct{}) // closed at the end, so that the server's handler returns
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}))
	defer server.Close()
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := newSecondary(t).reg.Activate(ctx, Activation{Token: engines.Sensitive(p.mustToken("a")), PrimaryAPIAddr: server.URL})
	refused(t, "a call that was given up", err, engines.KindInvalid, server.URL)
}

// generate calls secondary/generate-public-key.
func (m *member) generate() string {
	m.Helper()
	r, err := m.reg.GeneratePublicKey(m.Context(), nil, nil)
	if err != nil {
		m.Fatal(err)
	}
	return r.Data.(map[string]any)["secondary_public_key"].(string)
}

// TestPublicKeyFlow: the token is encrypted to the secondary, there is no wrapping, and the primary's API is not called.
func TestPublicKeyFlow(t *testing.T) {
	p, s := newPrimary(t), newSecondary(t)
	p.addr = "https://nobody.invalid:1"
	first := s.generate()
	public := s.generate()
	if raw, err := base64.StdEncoding.DecodeString(public); err != nil || len(raw) != 32 || first == public {
		t.Errorf("secondary_public_key = %q", public)
	}
	answer := func(key string) engines.Sensitive {
		t.Helper()
		r, err := p.token(`{"id":"berlin","secondary_public_key":"` + key + `"}`)
		if err != nil {
			t.Fatal(err)
		}
		if r.Wrap != nil || len(p.wraps) != 0 {
			t.Error("the answer is wrapped")
		}
		return engines.Sensitive(r.Data.(map[string]any)["token"].(string))
	}
	_, err := s.activate(Activation{Token: answer(first)})
	refused(t, "a token for the key before", err, engines.KindInvalid, "generated last")
	token := answer(public)
	b, err := s.activate(Activation{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	if b.SecondaryID != "berlin" || b.SetID != "set" || len(b.Addrs) != 2 {
		t.Errorf("bundle of %q", b.SecondaryID)
	}
	req, _ := request(t, "berlin", "c1", b.Secret)
	if _, err := p.reg.Enrol(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	_, err = p.reg.Enrol(t.Context(), req)
	refused(t, "the same token again", err, engines.KindInvalid, "already used")
	_, err = newSecondary(t).activate(Activation{Token: token})
	refused(t, "on another cluster", err, engines.KindInvalid, "generate-public-key")
	s.pass(2 * time.Hour)
	_, err = s.activate(Activation{Token: token})
	refused(t, "expired", err, engines.KindInvalid, "expired")
	// The commit that enables replication deletes the key.
	if _, err := s.store.Commit(t.Context(), storage.Batch{Deletes: []storage.Key{InviteKey}}); err != nil {
		t.Fatal(err)
	}
	_, err = s.activate(Activation{Token: token})
	refused(t, "without the key", err, engines.KindInvalid, "generate-public-key")

	_, err = p.reg.GeneratePublicKey(t.Context(), nil, nil)
	refused(t, "on a primary", err, engines.KindInvalid, "is a primary")
	s.become(roles.Role{Mode: roles.Secondary})
	s.generate() // for update-primary
}

// TestRevokeSecondary: the path answers 204, and 404 for an id it does not know.
func TestRevokeSecondary(t *testing.T) {
	m := newPrimary(t)
	router := engines.NewRouter()
	engines.On(router, engines.Update, "revoke-secondary", "", 0, m.reg.RevokeSecondary)
	post := func(body string) (*engines.Response, error) {
		return router.Handle(t.Context(), &engines.Request{Op: engines.Update, Path: "revoke-secondary", Body: json.RawMessage(body)})
	}
	cert := m.enrolled("berlin", "c1")
	_, err := post(`{}`)
	refused(t, "no id", err, engines.KindInvalid, `"id"`)
	_, err = post(`{"id":"oslo"}`)
	refused(t, "an unknown id", err, engines.KindNotFound, "known_secondaries")
	if r, err := post(`{"id":"berlin"}`); r != nil || err != nil {
		t.Errorf("%+v, %v; want no content", r, err)
	}
	if _, err := m.reg.Admit(t.Context(), cert); !errors.Is(err, ErrRevoked) {
		t.Errorf("Admit = %v", err)
	}
}
