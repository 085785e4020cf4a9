package servers

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

const (
	samlClients  = 4
	samlEntity   = "https://coffer.example.com/saml"
	samlVerifier = "what the client keeps to itself"
	formType     = "application/x-www-form-urlencoded"
)

var samlUser = samltest.User{
	Subject:    "ana@example.com",
	Attributes: map[string][]string{"groups": {"staff", "admins", "on-call"}, "mail": {"ana@example.com"}, "department": {"engineering"}},
}

// SAMLLogins measures logins through SAML. The identity provider is this process; what it signs is made while nothing is
// measured.
func SAMLLogins(b *run.Bench, s *run.Scope) {
	c := harness.NewCluster(s, 1, harness.Options{Plain: true})
	idp := samltest.New(samlTB{s: s})
	verification(b, s, idp)
	m := mountSAML(s, c.Nodes[0], idp, "saml")
	form := url.Values{"RelayState": {rand.Text()}, "SAMLResponse": {sampleResponse(idp)}}.Encode()
	formServer, _ := b.StartServer(s, form, "form")
	bare := run.Work{Addr: formServer, Method: "POST", Path: "/", Type: formType, Body: form, Conns: samlClients}
	rounds, count := 3, 300
	if b.Smoke {
		rounds, count = 1, 50
	}
	bare.Time = b.Seconds / 10
	var bares, starts, callbacks, tokens, logins []run.Outcome
	var used [3]time.Duration // by starts, answers, tokens
	for range rounds {
		bares = append(bares, b.Load(s, bare))
		start, callback, token := m.logins(b, s, count, &used)
		starts, callbacks, tokens = append(starts, start), append(callbacks, callback), append(tokens, token)
		logins = append(logins, inTurn(start, callback, token))
	}
	yard := run.Middle(bares)
	b.AddLoad(fmt.Sprintf("bare net/http, form with a SAML response parsed, one RSA-2048 verification of it, %d clients", samlClients), yard, run.Row{})
	b.AddLoad(fmt.Sprintf("login by SAML, all three requests, response and assertion signed, %d clients", samlClients), run.Middle(logins), run.Row{Yardstick: yard.Rate(), Beside: "bare form"})
	b.AddLoad("login by SAML: its start", run.Middle(starts), run.Row{})
	b.AddLoad("login by SAML: the identity provider's answer", run.Middle(callbacks), run.Row{Yardstick: yard.Rate(), Beside: "bare form"})
	b.AddLoad("login by SAML: its token", run.Middle(tokens), run.Row{})
	each := func(name string, used time.Duration) {
		b.Add(run.Row{Name: "login by SAML: processor time of the node for each" + name, Value: float64(used.Microseconds()) / float64(rounds*count), Unit: " µs"})
	}
	each("", used[0]+used[1]+used[2])
	each(", its start", used[0])
	each(", the identity provider's answer", used[1])
	each(", its token", used[2])
	pendingLogins(b, s, mountSAML(s, c.Nodes[0], idp, "waiting"))
}

// samlMount is a mount that believes an identity provider.
type samlMount struct {
	node *harness.Node
	idp  *samltest.IdP
	path string // below auth/
}

func mountSAML(s *run.Scope, n *harness.Node, idp *samltest.IdP, path string) samlMount {
	m := samlMount{n, idp, path}
	n.MustDo("POST", "/v1/sys/auth/"+path, map[string]any{"type": "saml"})
	n.MustDo("POST", "/v1/auth/"+path+"/config", map[string]any{
		"idp_sso_url": idp.SSOURL, "idp_entity_id": idp.EntityID, "idp_cert": idp.CertificatePEM(), "entity_id": samlEntity,
		"acs_urls": []string{m.acsURL()}, "validate_response_signature": true, "validate_assertion_signature": true,
	})
	n.MustDo("POST", "/v1/auth/"+path+"/role/dev", map[string]any{
		"bound_attributes": map[string]any{"groups": "staff"}, "groups_attribute": "groups", "token_policies": "default",
		"confirm": "never",
	})
	return m
}

func (m samlMount) acsURL() string { return m.node.URL + "/v1/auth/" + m.path + "/callback" }

func (m samlMount) request(path string) run.Work {
	return run.Work{Addr: addr(m.node), Method: "POST", Path: "/v1/auth/" + m.path + "/" + path, Conns: samlClients, Keep: true}
}

// start is so many starts of logins.
func (m samlMount) start(count int) run.Work {
	challenge := sha256.Sum256([]byte(samlVerifier))
	w := m.request("sso_service_url")
	w.Count = int64(count)
	w.Body = encode(map[string]string{
		"role": "dev", "client_type": "cli", "acs_url": m.acsURL(), "client_challenge": base64.StdEncoding.EncodeToString(challenge[:]),
	})
	return w
}

// logins starts logins, has all of them answered, and gets their tokens. It adds the processor time of the node that each of the three takes.
func (m samlMount) logins(b *run.Bench, s *run.Scope, count int, used *[3]time.Duration) (start, callback, token run.Outcome) {
	load := func(kind int, w run.Work) run.Outcome {
		before := cpuTime(s, m.node.PID())
		defer func() { used[kind] += cpuTime(s, m.node.PID()) - before }()
		return b.Load(s, w)
	}
	start = load(0, m.start(count))
	answer, redeem := m.request("callback"), m.request("token")
	answer.Type, answer.Bodies, redeem.Bodies = formType, make([]string, count), make([]string, count)
	run.Together(s, count, func(i int) error {
		var started struct {
			Data struct {
				URL    string `json:"sso_service_url"`
				PollID string `json:"token_poll_id"`
			}
		}
		if err := json.Unmarshal([]byte(start.Answers[i]), &started); err != nil {
			return err
		}
		r := samltest.Response{User: samlUser, SignResponse: true, SignAssertion: true}
		answer.Bodies[i] = m.idp.AnswerWith(started.Data.URL, r).Encode()
		redeem.Bodies[i] = encode(map[string]string{"client_verifier": samlVerifier, "token_poll_id": started.Data.PollID})
		return nil
	})
	return start, load(1, answer), load(2, redeem)
}

// inTurn is the outcome of doing each of what was measured one after the other.
func inTurn(parts ...run.Outcome) run.Outcome {
	whole := run.Outcome{Requests: parts[0].Requests, Took: make([]time.Duration, parts[0].Requests)}
	for _, p := range parts {
		whole.Seconds += p.Seconds
		for i, d := range p.Took {
			whole.Took[i] += d
		}
	}
	return whole.Sorted()
}

// sampleResponse answers no login in particular.
func sampleResponse(idp *samltest.IdP) string {
	return idp.Response(samltest.Response{
		RequestID: "_sample", ACSURL: "https://coffer.example.com/v1/auth/saml/callback", Audience: samlEntity, User: samlUser,
		SignResponse: true, SignAssertion: true,
	})
}

// verification measures what it takes to believe one response, beside one verification of a signature over its bytes.
func verification(b *run.Bench, s *run.Scope, idp *samltest.IdP) {
	encoded := sampleResponse(idp)
	expect := assertion.Expect{
		ACSURL: "https://coffer.example.com/v1/auth/saml/callback", EntityID: samlEntity, Issuer: idp.EntityID, RequestID: "_sample",
		Certificates: idp.Certificates(), SignedResponse: true, SignedAssertion: true, Now: time.Now(),
	}
	one, err := signedBytes(encoded)
	s.Check(err)
	var bares, owns []run.Outcome
	for range 3 {
		bares = append(bares, repeated(b, s, func() error { return one.verify(encoded) }))
		owns = append(owns, repeated(b, s, func() error {
			_, err := assertion.Verify(encoded, expect)
			return err
		}))
	}
	b.AddLoad(fmt.Sprintf("SAML response of %d bytes accepted, both signatures RSA-2048, in process, one caller", len(encoded)*3/4),
		run.Middle(owns), run.Row{Yardstick: run.Middle(bares).Rate(), Beside: "one RSA verification"})
}

// repeated does something again and again for a while.
func repeated(b *run.Bench, s *run.Scope, do func() error) run.Outcome {
	var o run.Outcome
	begin := time.Now()
	for before := begin; before.Sub(begin) < b.Seconds/20; {
		s.Check(do())
		now := time.Now()
		o.Took = append(o.Took, now.Sub(before))
		before = now
	}
	o.Requests, o.Seconds = int64(len(o.Took)), time.Since(begin).Seconds()
	return o.Sorted()
}

// pendingLogins measures what logins cost that are never finished, as many as one network may have.
func pendingLogins(b *run.Bench, s *run.Scope, m samlMount) {
	count := 10_000
	if b.Smoke {
		count = 500
	}
	heap, memory := heapMiB(s, m.node), ownMiB(s, m.node)
	disk := run.DiskUse(s, m.node.Dir)
	w := m.start(count)
	w.Keep, w.Conns = false, 64
	name := fmt.Sprintf("%d pending logins by SAML", count)
	b.AddLoad(fmt.Sprintf("%s, their starts, %d clients", name, w.Conns), b.Load(s, w), run.Row{})
	<-time.After(b.Seconds / 10) // the last ones reach the file of the state
	b.Add(run.Row{Name: name + ": resident memory of the node's own added, with garbage", Value: max(ownMiB(s, m.node)-memory, 0), Unit: " MiB"})
	b.Add(run.Row{Name: name + ": memory in use added", Value: max(heapMiB(s, m.node)-heap, 0), Unit: " MiB"})
	b.Add(run.Row{Name: name + ": storage added for each, state and log", Value: (run.DiskUse(s, m.node.Dir) - disk) / float64(count), Unit: " bytes"})
}

// samlTB lets the identity provider, which is made for tests, end a measurement.
type samlTB struct {
	testing.TB
	s *run.Scope
}

func (t samlTB) Helper() {}

func (t samlTB) Fatalf(format string, args ...any) { t.s.Fatalf(format, args...) }

// signed is a signature over the bytes that base64 stands for.
type signed struct {
	key       *rsa.PublicKey
	signature []byte
}

func signedBytes(encoded string) (signed, error) {
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return signed{}, err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return signed{}, err
	}
	digest := sha256.Sum256(text)
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, digest[:])
	return signed{&key.PublicKey, signature}, err
}

func (d signed) verify(encoded string) error {
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(text)
	return rsa.VerifyPKCS1v15(d.key, crypto.SHA256, digest[:], d.signature)
}

// FormMain is the yardstick of an answer: a server that parses the form that it read from standard input at its start and
// verifies one signature over the bytes of the response.
func FormMain() error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	form, err := url.ParseQuery(string(text))
	if err != nil {
		return err
	}
	one, err := signedBytes(form.Get("SAMLResponse"))
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := r.ParseForm()
		if err == nil {
			err = one.verify(r.PostForm.Get("SAMLResponse"))
		}
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		_, _ = w.Write([]byte("believed"))
	})}
	return server.Serve(l)
}
