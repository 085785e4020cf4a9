package cloud_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

type object = map[string]any

const (
	readOnly = "arn:aws:iam::aws:policy/ReadOnlyAccess"
	// document is a policy as it is stored and sent: without white space.
	document = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}]}`
	// noRetries leaves it to the tests how often a call is made.
	noRetries = 0
)

// mount is a mount of the engine, and the provider that it reaches.
type mount struct {
	t    *testing.T
	c    *harness.Cluster
	node *harness.Node // which requests go to
	name string
	aws  *awstest.Server
}

// alone returns a cluster of one node.
func alone(t *testing.T, prefix string) *harness.Cluster {
	t.Helper()
	return harness.NewCluster(t, 1, harness.Options{Prefix: prefix})
}

// enable mounts the engine, without a configuration.
func enable(t *testing.T, c *harness.Cluster, name string) *mount {
	t.Helper()
	m := &mount{t: t, c: c, node: c.Leader(), name: name, aws: awstest.New(t)}
	m.node.MustDo("POST", "/v1/sys/mounts/"+name, object{"type": "cloud"})
	return m
}

// ready mounts the engine and configures it.
func ready(t *testing.T, c *harness.Cluster, name string) *mount {
	t.Helper()
	m := enable(t, c, name)
	m.configure()
	return m
}

// in is the same mount in a subtest, with a provider that does as it is asked and a configuration of which nothing is left.
func (m *mount) in(t *testing.T) *mount {
	t.Helper()
	sub := *m
	sub.t = t
	sub.aws.Fail(nil)
	sub.later()
	sub.configure()
	sub.aws.Forget()
	return &sub
}

// later moves the provider's clock on: it tells the times of keys in seconds.
func (m *mount) later() { m.aws.Advance(2 * time.Second) }

// settings are a whole configuration. What is nil in more is left out.
func (m *mount) settings(more object) object {
	key, secret := m.aws.Root()
	if keys := m.aws.Keys("root-user"); !slices.ContainsFunc(keys, func(k awstest.Key) bool { return k.ID == key }) {
		key, secret = keys[0].ID, keys[0].Secret // it was rotated
	}
	all := object{
		"access_key": key, "secret_key": secret, "region": "eu-west-1", "iam_endpoint": m.aws.URL, "sts_endpoint": m.aws.URL,
		"max_retries": noRetries,
	}
	maps.Copy(all, more)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

func (m *mount) configure(more ...object) harness.Answer {
	m.t.Helper()
	all := object{}
	for _, o := range more {
		maps.Copy(all, o)
	}
	return m.node.MustDo("POST", "/v1/"+m.name+"/config/root", m.settings(all))
}

// role deletes a role and makes it again.
func (m *mount) role(name string, is object) harness.Answer {
	m.t.Helper()
	m.admin("DELETE", "roles/"+name, nil)
	return m.node.MustDo("POST", "/v1/"+m.name+"/roles/"+name, is)
}

// users makes a role of the type iam_user.
func (m *mount) users(name string, more object) harness.Answer {
	m.t.Helper()
	all := object{"credential_type": "iam_user", "policy_arns": readOnly}
	maps.Copy(all, more)
	return m.role(name, all)
}

// assumes makes a role of the type assumed_role, and the provider's roles of these names.
func (m *mount) assumes(name string, roles []string, more object) (arns []string) {
	m.t.Helper()
	for _, r := range roles {
		arns = append(arns, m.aws.AddRole(awstest.Role{Name: r, MaxTTL: 12 * time.Hour}))
	}
	all := object{"credential_type": "assumed_role", "role_arns": arns}
	maps.Copy(all, more)
	m.role(name, all)
	return arns
}

func send(t *testing.T, n *harness.Node, verb, path, token string, body any, header ...string) harness.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, err := n.Do(ctx, verb, "/v1/"+path, token, body, append(header, "X-Vault-Consistency", "linearizable")...)
	if err != nil {
		t.Fatalf("%s %s on %s: %v", verb, path, n.ID, err)
	}
	return a
}

// admin sends a request of the operator to the mount.
func (m *mount) admin(verb, path string, body any) harness.Answer {
	m.t.Helper()
	return send(m.t, m.node, verb, m.name+"/"+path, m.c.RootToken, body)
}

// sys sends a request of the operator to the system.
func (m *mount) sys(verb, path string, body any) harness.Answer {
	m.t.Helper()
	return send(m.t, m.node, verb, "sys/"+path, m.c.RootToken, body)
}

// read returns the data of a path of the mount.
func (m *mount) read(path string) object {
	m.t.Helper()
	return dataOf(m.t, m.admin("GET", path, nil))
}

// refused wants a write to be answered with 400 and a text that has the words.
func (m *mount) refused(path string, body object, words ...string) {
	m.t.Helper()
	wantStatus(m.t, path, m.admin("POST", path, body), 400, words...)
}

func dataOf(t *testing.T, a harness.Answer) object {
	t.Helper()
	var out struct{ Data object }
	if a.Status != 200 {
		t.Fatalf("status %d: %.400s", a.Status, a.Body)
	}
	a.Decode(t, &out)
	return out.Data
}

// issued is an answer with credentials.
type issued struct {
	Lease     string `json:"lease_id"`
	Seconds   int    `json:"lease_duration"`
	Renewable bool
	Warnings  []string
	Data      struct {
		AccessKey     string  `json:"access_key"`
		SecretKey     string  `json:"secret_key"`
		SecurityToken *string `json:"security_token"`
		SessionToken  *string `json:"session_token"`
		ARN           string
		TTL           int
	}
}

func issuedOf(t *testing.T, a harness.Answer) issued {
	t.Helper()
	var out issued
	if a.Status == 200 {
		a.Decode(t, &out)
	}
	if out.Data.AccessKey == "" || out.Data.SecretKey == "" {
		t.Fatalf("status %d, no credentials: %.400s", a.Status, a.Body)
	}
	return out
}

// creds issues credentials of a role.
func (m *mount) creds(role string) issued {
	m.t.Helper()
	return issuedOf(m.t, m.admin("GET", "creds/"+role, nil))
}

// identity asks the provider whose some credentials are; "" if it does not accept them.
func (m *mount) identity(key, secret string, token *string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := sts.New(sts.Options{
		Region: "eu-west-1", BaseEndpoint: aws.String(m.aws.URL), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(key, secret, aws.ToString(token)),
	})
	out, err := client.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return ""
	}
	return aws.ToString(out.Arn)
}

func (m *mount) owner(c issued) string {
	m.t.Helper()
	return m.identity(c.Data.AccessKey, c.Data.SecretKey, c.Data.SessionToken)
}

// user returns the provider's user that a key belongs to.
func (m *mount) user(key string) awstest.User {
	m.t.Helper()
	for _, u := range m.aws.Users() {
		if slices.ContainsFunc(u.Keys, func(k awstest.Key) bool { return k.ID == key }) {
			return u
		}
	}
	m.t.Fatal("the key is no user's")
	return awstest.User{}
}

// made returns the users that are there besides those of the test.
func (m *mount) made() (names []string) {
	for _, u := range m.aws.Users() {
		if strings.HasPrefix(u.Name, "vault-") {
			names = append(names, u.Name)
		}
	}
	return names
}

// sole returns the one call of an action since the provider forgot those before.
func (m *mount) sole(action string) awstest.Call {
	m.t.Helper()
	var found []awstest.Call
	for _, c := range m.aws.Calls() {
		if c.Action == action {
			found = append(found, c)
		}
	}
	if len(found) != 1 {
		m.t.Fatalf("%d calls of %s among %q", len(found), action, m.aws.Actions())
	}
	return found[0]
}

// wantStatus wants an answer with a status, whose body has all the words.
func wantStatus(t *testing.T, what string, a harness.Answer, status int, words ...string) {
	t.Helper()
	if a.Status != status {
		t.Errorf("%s: status %d: %.400s, want %d", what, a.Status, a.Body, status)
		return
	}
	body := string(a.Body)
	if texts := a.Errors(); texts != nil {
		body = strings.Join(texts, "\n")
	}
	for _, w := range words {
		if !strings.Contains(body, w) {
			t.Errorf("%s: %q does not say %q", what, body, w)
		}
	}
}

// wantData compares some fields as they are printed: numbers and lists look the same, however they were decoded.
func wantData(t *testing.T, got, want object) {
	t.Helper()
	for name, w := range want {
		if fmt.Sprint(got[name]) != fmt.Sprint(w) {
			t.Errorf("%s = %v, want %v", name, got[name], w)
		}
	}
}

// bare sends a request of the operator to a path as it is, without the prefix v1.
func (m *mount) bare(verb, path string) harness.Answer {
	m.t.Helper()
	a, err := m.node.Do(context.Background(), verb, "/"+path, m.c.RootToken, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	return a
}

var errNotYet = errors.New("it is as it was")

// current returns the key that a static role answers, which must be one of the user's that works.
func (m *mount) current(role, user string) awstest.Key {
	m.t.Helper()
	return m.working(m.read("static-creds/"+role), user)
}

// working returns the key of an answer.
func (m *mount) working(answered object, user string) awstest.Key {
	m.t.Helper()
	id, _ := answered["access_key"].(string)
	secret, _ := answered["secret_key"].(string)
	for _, k := range m.aws.Keys(user) {
		if k.ID == id && k.Secret == secret && m.identity(id, secret, nil) != "" {
			return k
		}
	}
	m.t.Fatalf("a key of %s that does not work is answered", user)
	return awstest.Key{}
}
