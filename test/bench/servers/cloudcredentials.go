package servers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/bench/run"
	"github.com/coffer-project/coffer/test/harness"
)

const (
	cloudClients = 16
	cloudRegion  = "eu-west-1"
	cloudManaged = "arn:aws:iam::aws:policy/ReadOnlyAccess"
	cloudInline  = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}]}`
	cloudPolicy  = `path "cloud/*" { capabilities = ["read"] }`
)

// provider is how the services are reached, and as whom.
type provider struct{ URL, AccessKey, SecretKey, RoleARN string }

// CloudCredentials measures credentials of users, which have leases, and of assumed roles, which have none. The provider is
// this process; the yardstick makes the calls that a credential cannot do without, with the provider's SDK.
func CloudCredentials(b *run.Bench, s *run.Scope) {
	fake := awstest.New(cloudTB{samlTB{s: s}}, awstest.Unrecorded())
	at := provider{URL: fake.URL, RoleARN: fake.AddRole(awstest.Role{Name: "dev"})}
	at.AccessKey, at.SecretKey = fake.Root()
	c := harness.NewCluster(s, 1, harness.Options{Plain: true})
	n := c.Nodes[0]
	token := mountCloud(s, n, at)
	bare, _ := b.StartServer(s, encode(at), "provider")
	get := func(addr, path string, count int) run.Work {
		return run.Work{Addr: addr, Method: "GET", Path: path, Token: token, Conns: cloudClients, Count: int64(count)}
	}
	const users, roles = "/v1/cloud/creds/user", "/v1/cloud/creds/role"
	warm, rounds, count := 500, 4, 2500
	if b.Smoke {
		warm, rounds, count = 50, 1, 300
	}
	for _, path := range []string{users, roles} { // what is there for the first of them only does not count
		b.Load(s, get(bare, path, warm))
		b.Load(s, get(addr(n), path, warm))
	}
	heap, before := heapMiB(s, n), len(fake.Users())
	var bares, owns []run.Outcome
	var used time.Duration
	for range rounds {
		bares = append(bares, b.Load(s, get(bare, users, count/2)))
		began := cpuTime(s, n.PID())
		owns = append(owns, b.Load(s, get(addr(n), users, count)))
		used += cpuTime(s, n.PID()) - began
	}
	total := rounds * count
	added := max(heapMiB(s, n)-heap, 0) * (1 << 20) / float64(total)
	if made := len(fake.Users()) - before; made != total+rounds*(count/2) {
		s.Fatalf("%d users made, want %d", made, total+rounds*(count/2))
	}
	yard := run.Middle(bares)
	b.AddLoad(fmt.Sprintf("bare net/http, one user of the provider made by four calls of its SDK, %d clients", cloudClients), yard, run.Row{})
	b.AddLoad(fmt.Sprintf("cloud credentials of %d users, with leases, %d clients", total, cloudClients), run.Middle(owns), run.Row{Yardstick: yard.Rate(), Beside: "bare calls"})
	b.Add(run.Row{Name: "cloud credentials of users: processor time of the node for each", Value: float64(used.Microseconds()) / float64(total), Unit: " µs"})
	b.Add(run.Row{Name: "cloud credentials of users: memory in use added for each lease", Value: added, Unit: " bytes"})
	revokedUsers(b, s, n, fake, token, warm+total)
	assumedRoles(b, s, get(bare, roles, 0), get(addr(n), roles, 0))
}

// revokedUsers measures how fast all users are removed that have leases, which are so many.
func revokedUsers(b *run.Bench, s *run.Scope, n *harness.Node, fake *awstest.Server, token string, count int) {
	before := len(fake.Users())
	o := b.Load(s, run.Work{Addr: addr(n), Method: "POST", Path: "/v1/sys/leases/revoke-prefix/cloud/creds/user", Token: token, Body: `{"sync":true}`, Conns: 1, Count: 1})
	if gone := before - len(fake.Users()); gone != count {
		s.Fatalf("%d users removed, want %d", gone, count)
	}
	b.Add(run.Row{Name: fmt.Sprintf("cloud credentials of %d users revoked by their prefix, in one request", count), Value: float64(count) / o.Seconds, Unit: "/s"})
}

// assumedRoles measures temporary credentials.
func assumedRoles(b *run.Bench, s *run.Scope, bare, own run.Work) {
	yard, o := b.Versus(s, bare, own)
	b.AddLoad(fmt.Sprintf("bare net/http, one role assumed by one call of the provider's SDK, %d clients", cloudClients), yard, run.Row{})
	b.AddLoad(fmt.Sprintf("cloud credentials of an assumed role, without leases, %d clients", cloudClients), o, run.Row{Yardstick: yard.Rate(), Beside: "bare calls"})
}

// mountCloud mounts the engine with a role of each type and returns a token that may read their credentials.
func mountCloud(s *run.Scope, n *harness.Node, at provider) string {
	n.MustDo("POST", "/v1/sys/mounts/cloud", map[string]any{"type": "cloud"})
	n.MustDo("POST", "/v1/cloud/config/root", map[string]any{
		"access_key": at.AccessKey, "secret_key": at.SecretKey, "region": cloudRegion, "iam_endpoint": at.URL, "sts_endpoint": at.URL,
	})
	n.MustDo("POST", "/v1/cloud/roles/user", map[string]any{
		"credential_type": "iam_user", "policy_arns": cloudManaged, "policy_document": cloudInline,
	})
	n.MustDo("POST", "/v1/cloud/roles/role", map[string]any{"credential_type": "assumed_role", "role_arns": at.RoleARN})
	policy := cloudPolicy + "\n" + `path "sys/leases/revoke-prefix/cloud/*" { capabilities = ["update", "sudo"] }`
	n.MustDo("POST", "/v1/sys/policies/acl/cloud", map[string]any{"policy": policy})
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	n.MustDo("POST", "/v1/auth/token/create", map[string]any{"policies": []string{"cloud"}, "ttl": "24h"}).Decode(s, &out)
	return out.Auth.Token
}

// cloudTB lets the provider, which is made for tests, end a measurement, and end with it.
type cloudTB struct{ samlTB }

func (t cloudTB) Cleanup(f func()) { t.s.Cleanup(f) }

func (t cloudTB) Errorf(format string, args ...any) { t.s.Errorf(format, args...) }

func (t cloudTB) Fatal(args ...any) { t.s.Fatalf("%s", fmt.Sprint(args...)) }

// ProviderMain is the yardstick of credentials: a server that makes the provider's calls, answers what they return, and
// keeps nothing.
func ProviderMain() error {
	var at provider
	if err := json.NewDecoder(os.Stdin).Decode(&at); err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = cloudClients
	conf := aws.Config{
		Region: cloudRegion, BaseEndpoint: &at.URL, HTTPClient: &http.Client{Transport: transport},
		Credentials: credentials.NewStaticCredentialsProvider(at.AccessKey, at.SecretKey, ""),
	}
	users, roles := iam.NewFromConfig(conf), sts.NewFromConfig(conf)
	answer := func(w http.ResponseWriter, v any, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/cloud/creds/user", func(w http.ResponseWriter, r *http.Request) {
		key, err := oneUser(r.Context(), users)
		answer(w, key, err)
	})
	mux.HandleFunc("/v1/cloud/creds/role", func(w http.ResponseWriter, r *http.Request) {
		got, err := roles.AssumeRole(r.Context(), &sts.AssumeRoleInput{RoleArn: &at.RoleARN, RoleSessionName: aws.String(rand.Text())})
		answer(w, got, err)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return (&http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: mux}).Serve(l)
}

// oneUser makes a user with the calls that the engine makes, too.
func oneUser(ctx context.Context, c *iam.Client) (*iam.CreateAccessKeyOutput, error) {
	name := aws.String(rand.Text())
	if _, err := c.CreateUser(ctx, &iam.CreateUserInput{UserName: name}); err != nil {
		return nil, err
	}
	if _, err := c.AttachUserPolicy(ctx, &iam.AttachUserPolicyInput{UserName: name, PolicyArn: aws.String(cloudManaged)}); err != nil {
		return nil, err
	}
	if _, err := c.PutUserPolicy(ctx, &iam.PutUserPolicyInput{
		UserName: name, PolicyName: aws.String("user"), PolicyDocument: aws.String(cloudInline),
	}); err != nil {
		return nil, err
	}
	return c.CreateAccessKey(ctx, &iam.CreateAccessKeyInput{UserName: name})
}
