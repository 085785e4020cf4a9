package main

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/assertion"
	"github.com/coffer-project/coffer/engines/saml/samltest"
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

// samlLogins measures logins through SAML. The identity provider is this process; what it signs is made while nothing is
// measured.
func (b *bench) samlLogins(s *scope) {
	c := harness.NewCluster(s, 1, harness.Options{Plain: true})
	idp := samltest.New(samlTB{s: s})
	b.verification(s, idp)
	m := mountSAML(s, c.Nodes[0], idp, "saml")
	form := url.Values{"RelayState": {rand.Text()}, "SAMLResponse": {sampleResponse(idp)}}.Encode()
	bare := work{Addr: b.startServer(s, form, "form"), Method: "POST", Path: "/", Type: formType, Body: form, Conns: samlClients}
	rounds, count := 3, 300
	if b.smoke {
		rounds, count = 1, 50
	}
	bare.Time = b.seconds / 10
	var bares, starts, callbacks, tokens, logins []outcome
	var used time.Duration
	for range rounds {
		bares = append(bares, b.load(s, bare))
		before := cpuTime(s, m.node.PID())
		start, callback, token := m.logins(b, s, count)
		used += cpuTime(s, m.node.PID()) - before
		starts, callbacks, tokens = append(starts, start), append(callbacks, callback), append(tokens, token)
		logins = append(logins, inTurn(start, callback, token))
	}
	yard := middle(bares)
	b.addLoad(fmt.Sprintf("bare net/http, form with a SAML response parsed, one RSA-2048 verification of it, %d clients", samlClients), yard, row{})
	b.addLoad(fmt.Sprintf("login by SAML, all three requests, response and assertion signed, %d clients", samlClients), middle(logins), row{yardstick: yard.rate(), beside: "bare form"})
	b.addLoad("login by SAML: its start", middle(starts), row{})
	b.addLoad("login by SAML: the identity provider's answer", middle(callbacks), row{yardstick: yard.rate(), beside: "bare form"})
	b.addLoad("login by SAML: its token", middle(tokens), row{})
	b.add(row{name: "login by SAML: processor time of the node for each", value: float64(used.Microseconds()) / float64(rounds*count), unit: " µs"})
	b.pendingLogins(s, mountSAML(s, c.Nodes[0], idp, "waiting"))
}

// samlMount is a mount that believes an identity provider.
type samlMount struct {
	node *harness.Node
	idp  *samltest.IdP
	path string // below auth/
}

func mountSAML(s *scope, n *harness.Node, idp *samltest.IdP, path string) samlMount {
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

func (m samlMount) request(path string) work {
	return work{Addr: addr(m.node), Method: "POST", Path: "/v1/auth/" + m.path + "/" + path, Conns: samlClients, Keep: true}
}

// start is so many starts of logins.
func (m samlMount) start(count int) work {
	challenge := sha256.Sum256([]byte(samlVerifier))
	w := m.request("sso_service_url")
	w.Count = int64(count)
	w.Body = encode(map[string]string{
		"role": "dev", "client_type": "cli", "acs_url": m.acsURL(), "client_challenge": base64.StdEncoding.EncodeToString(challenge[:]),
	})
	return w
}

// logins starts logins, has all of them answered, and gets their tokens.
func (m samlMount) logins(b *bench, s *scope, count int) (start, callback, token outcome) {
	start = b.load(s, m.start(count))
	answer, redeem := m.request("callback"), m.request("token")
	answer.Type, answer.Bodies, redeem.Bodies = formType, make([]string, count), make([]string, count)
	together(s, count, func(i int) error {
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
	return start, b.load(s, answer), b.load(s, redeem)
}

// inTurn is the outcome of doing each of what was measured one after the other.
func inTurn(parts ...outcome) outcome {
	whole := outcome{Requests: parts[0].Requests, Took: make([]time.Duration, parts[0].Requests)}
	for _, p := range parts {
		whole.Seconds += p.Seconds
		for i, d := range p.Took {
			whole.Took[i] += d
		}
	}
	return whole.sorted()
}

// sorted fills in what Took says.
func (o outcome) sorted() outcome {
	slices.Sort(o.Took)
	o.P50, o.P99, o.Max = o.Took[len(o.Took)/2], o.Took[len(o.Took)*99/100], o.Took[len(o.Took)-1]
	return o
}

// sampleResponse answers no login in particular.
func sampleResponse(idp *samltest.IdP) string {
	return idp.Response(samltest.Response{
		RequestID: "_sample", ACSURL: "https://coffer.example.com/v1/auth/saml/callback", Audience: samlEntity, User: samlUser,
		SignResponse: true, SignAssertion: true,
	})
}

// verification measures what it takes to believe one response, beside one verification of a signature over its bytes.
func (b *bench) verification(s *scope, idp *samltest.IdP) {
	encoded := sampleResponse(idp)
	expect := assertion.Expect{
		ACSURL: "https://coffer.example.com/v1/auth/saml/callback", EntityID: samlEntity, Issuer: idp.EntityID, RequestID: "_sample",
		Certificates: idp.Certificates(), SignedResponse: true, SignedAssertion: true, Now: time.Now(),
	}
	one, err := signedBytes(encoded)
	s.check(err)
	var bares, owns []outcome
	for range 3 {
		bares = append(bares, b.repeated(s, func() error { return one.verify(encoded) }))
		owns = append(owns, b.repeated(s, func() error {
			_, err := assertion.Verify(encoded, expect)
			return err
		}))
	}
	b.addLoad(fmt.Sprintf("SAML response of %d bytes believed, both signatures RSA-2048, in process, one caller", len(encoded)*3/4),
		middle(owns), row{yardstick: middle(bares).rate(), beside: "one RSA verification"})
}

// repeated does something again and again for a while.
func (b *bench) repeated(s *scope, do func() error) outcome {
	var o outcome
	begin := time.Now()
	for before := begin; before.Sub(begin) < b.seconds/20; {
		s.check(do())
		now := time.Now()
		o.Took = append(o.Took, now.Sub(before))
		before = now
	}
	o.Requests, o.Seconds = int64(len(o.Took)), time.Since(begin).Seconds()
	return o.sorted()
}

// pendingLogins measures what logins cost that nobody finishes, as many as one network may have.
func (b *bench) pendingLogins(s *scope, m samlMount) {
	count := 10_000
	if b.smoke {
		count = 500
	}
	heap, memory := heapMiB(s, m.node), ownMiB(s, m.node)
	disk := diskUse(s, m.node.Dir)
	w := m.start(count)
	w.Keep, w.Conns = false, 64
	name := fmt.Sprintf("%d pending logins by SAML", count)
	b.addLoad(fmt.Sprintf("%s, their starts, %d clients", name, w.Conns), b.load(s, w), row{})
	<-time.After(b.seconds / 10) // the last ones reach the file of the state
	b.add(row{name: name + ": resident memory of the node's own added, with garbage", value: max(ownMiB(s, m.node)-memory, 0), unit: " MiB"})
	b.add(row{name: name + ": memory in use added", value: max(heapMiB(s, m.node)-heap, 0), unit: " MiB"})
	b.add(row{name: name + ": storage added for each, state and log", value: (diskUse(s, m.node.Dir) - disk) / float64(count), unit: " bytes"})
}

// ownMiB is a node's resident memory without mapped files.
func ownMiB(s *scope, n *harness.Node) float64 {
	size, err := statusMiB(strconv.Itoa(n.PID()), "RssAnon:")
	s.check(err)
	return size
}

// heapMiB is what of a node's memory is in use after a garbage collection.
func heapMiB(s *scope, n *harness.Node) float64 {
	text := string(n.MustDo("GET", "/v1/sys/pprof/heap?gc=true&debug=1", nil).Body)
	_, rest, _ := strings.Cut(text, "# HeapAlloc = ")
	number, _, _ := strings.Cut(rest, "\n")
	size, err := strconv.ParseFloat(number, 64)
	s.check(err)
	return size / (1 << 20)
}

// diskUse is how many bytes of a disk the files of a directory take.
func diskUse(s *scope, dir string) float64 {
	total := 0.0
	s.check(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		total += float64(info.Sys().(*syscall.Stat_t).Blocks) * 512
		return nil
	}))
	return total
}

// samlTB lets the identity provider, which is made for tests, end a measurement.
type samlTB struct {
	testing.TB
	s *scope
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

// formMain is the yardstick of an answer: a server that parses the form that it read from standard input at its start and
// verifies one signature over the bytes of the response.
func formMain() error {
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
