package security_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

// TestSAMLRemovedCertificates: a certificate that is gone from the metadata is out on every node and in every cluster once
// config/verify has answered: a node that becomes the active one again does not bring it back, nor does a secondary.
func TestSAMLRemovedCertificates(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, 3, harness.Options{Prefix: "a"})
	secondary := harness.NewCluster(t, 1, harness.Options{Prefix: "b"})
	stolen := samltest.New(t, samltest.WithKey(samltest.NewKey(samltest.P256, 0)))
	fresh := samltest.New(t, samltest.WithKey(samltest.NewKey(samltest.P256, 1)))
	var published atomic.Pointer[samltest.IdP]
	published.Store(stolen)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(published.Load().MetadataXML()) }))
	defer service.Close()

	root := user{t, c.Leader(), c.RootToken, ""}
	m := root.saml("sso", stolen, nil)
	there := m.on(secondary.Nodes[0])
	there.acs = there.n.URL + "/v1/auth/sso/callback"
	root.must("POST", m.path("config"), fields{"idp_metadata_url": service.URL + "/metadata", "acs_urls": []string{m.acs, there.acs}})
	harness.Replicate(c, secondary, "b")

	logIn := func(what string, m method, by *samltest.IdP, want int) {
		t.Helper()
		l := m.start(nil)
		if a := m.post(by.Answer(l.url, alice)); a.Status != want {
			t.Errorf("%s: the callback answers %d, want %d: %.200s", what, a.Status, want, a.Body)
		}
	}
	logIn("the first key", m, stolen, 200)
	logIn("the first key at the secondary", there, stolen, 200)

	first := c.Leader()
	stepDown := func() *harness.Node {
		t.Helper()
		old := c.Leader()
		root.at(old).must("POST", "sys/step-down", nil)
		harness.Await(t, "another active node", time.Minute, func() error {
			if c.Leader() == old {
				return fmt.Errorf("%s is", old.ID)
			}
			return nil
		})
		return c.Leader()
	}
	next := m.on(stepDown())
	logIn("the first key at the next node", next, stolen, 200)
	published.Store(fresh)
	next.must("POST", m.path("config/verify"), nil)
	logIn("a removed key", next, stolen, 400)
	logIn("the new key", next, fresh, 200)
	secondary.AwaitHead(c)
	logIn("a removed key at the secondary", there, stolen, 400)
	logIn("the new key at the secondary", there, fresh, 200)
	for n := 0; c.Leader() != first; n++ {
		if n == 10 {
			t.Skip("the first node has not become the active one again") // it is not ours to choose
		}
		stepDown()
	}
	logIn("a removed key at a node that knew it", m.on(first), stolen, 400)
	logIn("the new key there", m.on(first), fresh, 200)
}

// TestSAMLNames: a user whose entity is disabled does not come back by another of their names, nor shed a group that denies by
// having many others.
func TestSAMLNames(t *testing.T) {
	t.Parallel()
	const persistent = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), fields{"name_id_format": "emailAddress"})
	email := samltest.Response{User: alice, Format: "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress"}
	l := m.start(nil)
	if a := m.post(m.idp.AnswerWith(l.url, email)); a.Status != 200 {
		t.Fatalf("the callback answers %d", a.Status)
	}
	entity := m.take(l).Entity
	root.must("POST", "identity/entity/id/"+entity, fields{"disabled": true})
	other := alice
	other.Subject = "G-0d8d"
	for _, format := range []string{"", persistent, "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"} {
		l := m.start(nil)
		m.shut("another format", m.idp.AnswerWith(l.url, samltest.Response{User: other, Format: format}))
		if a := m.redeem(l); a.Status != 403 {
			t.Errorf("a name of the format %q: status %d", format, a.Status)
		}
	}
	upper := email
	upper.User.Subject = "ALICE@example.com"
	for _, answer := range []samltest.Response{email, upper} {
		l := m.start(nil)
		m.post(m.idp.AnswerWith(l.url, answer))
		if a := m.redeem(l); a.Status != 403 {
			t.Errorf("%s, disabled: status %d", answer.User.Subject, a.Status)
		}
	}
	many := samltest.User{Subject: "bob", Attributes: map[string][]string{"groups": {"staff"}}}
	for i := range 512 {
		many.Attributes["groups"] = append(many.Attributes["groups"], fmt.Sprint("g", i))
	}
	many.Attributes["groups"] = append(many.Attributes["groups"], "suspended")
	l = m.start(nil)
	m.shut("many groups", m.idp.AnswerWith(l.url, samltest.Response{User: many, Format: email.Format}))
	if a := m.redeem(l); a.Status != 403 {
		t.Errorf("with many groups: status %d", a.Status)
	}
}
