package cloud_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

// Requests to a cluster whose active node changes.

// do sends a request of the operator. The status is 0 when there is no answer.
func (m *mount) do(n *harness.Node, verb, path string, body any) harness.Answer {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, err := n.Do(ctx, verb, "/v1/"+path, m.c.RootToken, body, "X-Vault-Consistency", "linearizable")
	if err != nil {
		return harness.Answer{}
	}
	return a
}

// anywhere repeats a request until a node has decided about it.
func (m *mount) anywhere(verb, path string, body any) (a harness.Answer) {
	m.t.Helper()
	harness.Await(m.t, verb+" "+path, patience, func() error {
		for _, n := range m.c.Nodes {
			if a = m.do(n, verb, m.name+"/"+path, body); a.Status != 0 && a.Status < 500 {
				return nil
			}
		}
		return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	})
	return a
}

// noted returns the users of the rollbacks that are stored.
func (m *mount) noted() (users []string) {
	m.t.Helper()
	a := m.anywhere("LIST", "rollbacks", nil)
	if a.Status == 404 {
		return nil
	}
	info, _ := dataOf(m.t, a)["key_info"].(object)
	for _, about := range info {
		name, _ := about.(object)["user"].(string)
		users = append(users, name)
	}
	return users
}

// hasUsers makes the role full.
func (m *mount) hasUsers() {
	m.t.Helper()
	m.aws.AddGroup(awstest.Group{Name: "staff"})
	m.put(m.name+"/roles/full", object{"credential_type": "iam_user", "policy_arns": readOnly, "policy_document": document, "iam_groups": "staff"})
}

// hasSession makes the role that worksAsRoot needs.
func (m *mount) hasSession() {
	m.t.Helper()
	m.put(m.name+"/roles/session", object{"credential_type": "session_token"})
}

// worksAsRoot wants the stored root key to work.
func (m *mount) worksAsRoot() {
	m.t.Helper()
	if a := m.anywhere("POST", "sts/session", nil); a.Status != 200 {
		m.t.Errorf("the stored root key does not work: status %d: %.300s", a.Status, a.Body)
	}
}

// answered repeats a request until it succeeds.
func (m *mount) answered(verb, path string, body any) (a harness.Answer) {
	m.t.Helper()
	harness.Await(m.t, verb+" "+path, untilSure, func() error {
		if a = m.do(m.c.Leader(), verb, path, body); a.Status < 200 || a.Status > 299 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		return nil
	})
	return a
}

// eventually is answered below the mount, with data.
func (m *mount) eventually(verb, path string, body any) object {
	m.t.Helper()
	return dataOf(m.t, m.answered(verb, m.name+"/"+path, body))
}

// put writes what may be there already, by a request whose answer was lost.
func (m *mount) put(path string, body object) {
	m.t.Helper()
	harness.Await(m.t, path, patience, func() error {
		a := m.do(m.c.Leader(), "POST", path, body)
		if a.Status >= 200 && a.Status < 300 || a.Status == 400 && strings.Contains(string(a.Body), "in use") {
			return nil
		}
		return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	})
}

// stored is current, also after an election.
func (m *mount) stored(role, user string) awstest.Key {
	m.t.Helper()
	return m.working(m.eventually("GET", "static-creds/"+role, nil), user)
}

// leases returns those of the role full.
func (m *mount) leases() []string {
	m.t.Helper()
	var out struct{ Data struct{ Keys []string } }
	harness.Await(m.t, "the list of leases", patience, func() error {
		a := m.do(m.c.Leader(), "LIST", "sys/leases/lookup/"+m.name+"/creds/full/", nil)
		if a.Status == 200 {
			a.Decode(m.t, &out)
		} else if a.Status != 404 {
			return fmt.Errorf("status %d: %.300s", a.Status, a.Body)
		}
		return nil
	})
	return out.Data.Keys
}
