package saml_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/saml/samltest"
)

// TestLoginsModel does what clients, browsers, strangers and administrators may do, in any order and on two nodes, and
// compares each result with a model of what a login is.
func TestLoginsModel(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newModel(t, seed).run(250) })
		})
	}
}

// known is what the model knows of a login.
type known struct {
	started
	verifier, relay string
	until           time.Time
	user            string // who it was completed for, "" if for none
	refused, used   bool
	code            string // of one that the identity provider began
}

// answer is one that the identity provider has given.
type answer struct {
	form     url.Values
	login    int // -1: to no request
	user     string
	admitted bool
	until    time.Time
	used     bool
}

type model struct {
	*flow
	rand    *rand.Rand
	nodes   []*flow
	logins  []*known
	answers []*answer
	role    bool // whether there is one
	done    map[string]int
}

func newModel(t *testing.T, seed uint64) *model {
	f := newFlow(t, byIdP)
	return &model{flow: f, rand: rand.New(rand.NewPCG(seed, 5)), nodes: []*flow{f, f.peer()}, role: true, done: map[string]int{}}
}

func (m *model) run(steps int) {
	m.t.Helper()
	acts := []func(*flow){m.starts, m.starts, m.answered, m.answered, m.answered, m.posts, m.posts, m.posts, m.posts, m.redeems, m.redeems, m.redeems, m.redeems, m.administers, m.waits}
	for range steps {
		acts[m.rand.IntN(len(acts))](m.nodes[m.rand.IntN(2)])
	}
	for _, what := range []string{"accepted", "redeemed", "refused", "pending"} {
		if m.done[what] == 0 {
			m.t.Errorf("no login was %s", what)
		}
	}
}

func pick[T any](m *model, from []T) (v T, ok bool) {
	if len(from) == 0 {
		return v, false
	}
	return from[max(0, len(from)-1-m.rand.IntN(8))], true // mostly the young ones
}

func (m *model) starts(f *flow) {
	v := fmt.Sprint("verifier ", len(m.logins))
	resp, err := f.do(engines.Update, "sso_service_url", startBody(fields{"client_challenge": challenge(v)}))
	if (err == nil) != m.role {
		m.t.Fatalf("starting with a role %t: %v", m.role, err)
	}
	if err != nil {
		return
	}
	data := f.Data(resp)
	k := &known{verifier: v, until: time.Now().Add(5 * time.Minute)}
	k.url, k.poll = data["sso_service_url"].(string), data["token_poll_id"].(string)
	k.relay = relayOf(m.t, k.url)
	m.logins = append(m.logins, k)
}

// answered has the identity provider answer a login, or another one, about a user whom the role admits or not.
func (m *model) answered(*flow) {
	a := &answer{login: -1, user: fmt.Sprint("user ", len(m.answers)), admitted: m.rand.IntN(4) > 0, until: time.Now().Add(6 * time.Minute)}
	u := samltest.User{Subject: a.user, Attributes: map[string][]string{"groups": {"guests"}}}
	if a.admitted {
		u.Attributes["groups"] = []string{"staff"}
	}
	if at := len(m.logins) - 1 - m.rand.IntN(5); at >= 0 && m.logins[at].url != "" {
		a.login = at
		a.form = m.idp.Answer(m.logins[a.login].url, u)
	} else {
		a.form = m.unsolicited(samltest.Response{User: u})
	}
	m.answers = append(m.answers, a)
}

// posts brings an answer to the callback: with its RelayState, another login's, or none.
func (m *model) posts(f *flow) {
	a, ok := pick(m, m.answers)
	if !ok {
		return
	}
	at := a.login
	if m.rand.IntN(4) == 0 {
		at = m.rand.IntN(len(m.logins)+1) - 1
	}
	form := url.Values{"SAMLResponse": a.form["SAMLResponse"], "RelayState": {"elsewhere"}}
	if at >= 0 {
		form.Set("RelayState", m.logins[at].relay)
	}
	now := time.Now()
	var k *known
	if at >= 0 && m.logins[at].relay != "" && now.Before(m.logins[at].until) && !m.logins[at].used {
		k = m.logins[at]
	}
	accepted := (at == a.login || a.login < 0) && now.Before(a.until) && !a.used
	if a.login >= 0 {
		accepted = accepted && k != nil && k.user == "" && !k.refused
	} else {
		accepted = accepted && k == nil
	}
	resp, err := f.post(form)
	switch want := accepted && a.admitted && m.role; {
	case want != (err == nil):
		m.t.Fatalf("the answer about %s (login %d, used %t) posted to login %d: %v (%s), want success %t", a.user, a.login, a.used, at, err, reasonOf(err), want)
	case !accepted:
		return
	}
	a.used = true
	switch {
	case err != nil && k != nil:
		k.refused = true
		m.done["refused"]++
	case err != nil:
	case k != nil:
		k.user = a.user
		m.done["accepted"]++
	default:
		m.logins = append(m.logins, &known{user: a.user, code: shown(m.t, resp), until: now.Add(2 * time.Minute)})
	}
}

// redeems asks for the token of a login, sometimes with another one's verifier.
func (m *model) redeems(f *flow) {
	k, ok := pick(m, m.logins)
	if !ok {
		return
	}
	proof, _ := pick(m, m.logins)
	if m.rand.IntN(3) > 0 {
		proof = k
	}
	body := fields{"token_poll_id": k.poll, "client_verifier": proof.verifier}
	if k.code != "" {
		body, proof = fields{"code": k.code}, k
	} else if proof.verifier == "" {
		return
	}
	there := !k.used && time.Now().Before(k.until) && proof == k
	resp, err := f.do(engines.Update, "token", body)
	switch {
	case !there:
		wantError(m.t, err, engines.KindInvalid)
	case k.refused, k.user != "" && !m.role:
		wantError(m.t, err, engines.KindDenied)
		k.used = true
	case k.user == "":
		wantError(m.t, err, engines.KindUnauthorized)
		m.done["pending"]++
	default:
		if err != nil || resp.Auth.Login.Alias.Name != k.user || resp.Auth.Login.Role != "dev" {
			m.t.Fatalf("redeeming %s's login: %+v, %v", k.user, resp, err)
		}
		k.used = true
		m.done["redeemed"]++
	}
}

// administers removes the role, or brings it back.
func (m *model) administers(f *flow) {
	if m.role = !m.role || m.rand.IntN(3) > 0; m.role {
		m.flow.role("dev", nil)
		return
	}
	f.Must(engines.Delete, "role/dev", nil)
}

func (m *model) waits(*flow) { time.Sleep(time.Duration(m.rand.IntN(90)) * time.Second) }
