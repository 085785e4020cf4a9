//go:build e2e

package cloud_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/coffer-project/coffer/engines/cloud/awstest/model"
	"github.com/coffer-project/coffer/test/harness"
)

// emulator is IAM and STS as others have written them. Until lock, everybody may do everything there.
type emulator struct {
	t     *testing.T
	url   string // for what tests do there, with complete before it
	front string // what servers under test are told: the vendor's model stands before it as judge
	admin keys   // of a user who may do everything

	*asked
}

// asked is what the emulator has been asked for, and what is kept for it.
type asked struct {
	mu     sync.Mutex
	scopes map[string]bool       // "<access key>/<region>/<service>" of the requests to front
	last   map[string]url.Values // those requests, by their action
	served map[string]string     // ids of service-specific credentials, by their user
}

// keys authenticate requests to the provider.
type keys struct{ id, secret, token string }

func (c issued) keys() keys {
	return keys{c.Data.AccessKey, c.Data.SecretKey, aws.ToString(c.Data.SessionToken)}
}

// emulate starts the emulator that test/e2e/run has installed, until the test ends.
func emulate(t *testing.T) emulator {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(filepath.Join(root, "test", "e2e", "cloud", "venv", "bin", "moto_server"), "-H", "127.0.0.1", "-p", "0")
	server.Env = append(os.Environ(), "MOTO_IAM_LOAD_MANAGED_POLICIES=true")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no orphan when the test is killed
	said, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatalf("%v: run test/e2e/run, which installs it", err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	e := emulator{
		t: t, admin: keys{"AKIAEXAMPLEEXAMPLE00", "not checked yet", ""},
		asked: &asked{scopes: map[string]bool{}, last: map[string]url.Values{}, served: map[string]string{}},
	}
	lines, own := bufio.NewReader(said), ""
	for own == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the emulator did not start: %v", err)
		}
		if _, at, ok := strings.Cut(line, "Running on "); ok {
			own = strings.TrimSpace(at)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }() // ends with the process
	to, err := url.Parse(own)
	if err != nil {
		t.Fatal(err)
	}
	whole := e.complete(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // is signed
		},
		ModifyResponse: unfold,
	})
	forTests, forServers := httptest.NewServer(whole), httptest.NewServer(e.record(whole))
	t.Cleanup(forTests.Close)
	t.Cleanup(forServers.Close)
	e.url = forTests.URL
	e.front = model.Watch(t, forServers.URL, nil)
	e.admin = e.addUser("admin", allow("*"))
	return e
}

// lock turns signatures and policies on, as the provider has them.
func (e emulator) lock() {
	e.t.Helper()
	answer, err := http.Post(e.url+"/moto-api/reset-auth", "text/plain", strings.NewReader("0"))
	if err != nil {
		e.t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != 200 {
		e.t.Fatalf("reset-auth: status %d", answer.StatusCode)
	}
}

// allow is a policy.
func allow(actions ...string) string {
	text, _ := json.Marshal(object{"Version": "2012-10-17", "Statement": object{"Effect": "Allow", "Action": actions, "Resource": "*"}})
	return string(text)
}

// trust is the policy of a role that some users may assume who know an external id, if there is one.
func trust(externalID string, arns ...string) string {
	statement := object{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": object{"AWS": arns}}
	if externalID != "" {
		statement["Condition"] = object{"StringEquals": object{"sts:ExternalId": externalID}}
	}
	text, _ := json.Marshal(object{"Version": "2012-10-17", "Statement": statement})
	return string(text)
}

// iam is a client as an application would use it, without retries.
func (e emulator) iam(k keys) *iam.Client {
	return iam.New(iam.Options{
		Region: "us-east-1", BaseEndpoint: &e.url, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(k.id, k.secret, k.token),
	})
}

func (e emulator) sts(k keys) *sts.Client {
	return sts.New(sts.Options{
		Region: "us-east-1", BaseEndpoint: &e.url, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(k.id, k.secret, k.token),
	})
}

// did returns what a call that has to succeed returned.
func did[T any](t *testing.T, call func(context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := call(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// codeOf is the provider's word for why a call failed, "" if it did not.
func codeOf(err error) string {
	if err == nil {
		return ""
	}
	if said, ok := errors.AsType[smithy.APIError](err); ok {
		return said.ErrorCode()
	}
	return err.Error()
}

func wantCode(t *testing.T, what string, err error, want string) {
	t.Helper()
	if got := codeOf(err); got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// addUser makes a user with a key and an inline policy.
func (e emulator) addUser(name, policy string) keys {
	e.t.Helper()
	c := e.iam(e.admin)
	did(e.t, func(ctx context.Context) (*iam.CreateUserOutput, error) {
		return c.CreateUser(ctx, &iam.CreateUserInput{UserName: &name})
	})
	did(e.t, func(ctx context.Context) (*iam.PutUserPolicyOutput, error) {
		return c.PutUserPolicy(ctx, &iam.PutUserPolicyInput{UserName: &name, PolicyName: aws.String("own"), PolicyDocument: &policy})
	})
	return e.addKey(name)
}

func (e emulator) userARN(name string) string { return "arn:aws:iam::" + account + ":user/" + name }

func (e emulator) addGroup(name, policy string) {
	e.t.Helper()
	did(e.t, func(ctx context.Context) (*iam.CreateGroupOutput, error) {
		return e.iam(e.admin).CreateGroup(ctx, &iam.CreateGroupInput{GroupName: &name})
	})
	did(e.t, func(ctx context.Context) (*iam.PutGroupPolicyOutput, error) {
		return e.iam(e.admin).PutGroupPolicy(ctx, &iam.PutGroupPolicyInput{GroupName: &name, PolicyName: aws.String("own"), PolicyDocument: &policy})
	})
}

func (e emulator) addKey(user string) keys {
	e.t.Helper()
	out := did(e.t, func(ctx context.Context) (*iam.CreateAccessKeyOutput, error) {
		return e.iam(e.admin).CreateAccessKey(ctx, &iam.CreateAccessKeyInput{UserName: &user})
	})
	return keys{id: *out.AccessKey.AccessKeyId, secret: *out.AccessKey.SecretAccessKey}
}

// keyIDs returns those of a user, the oldest first.
func (e emulator) keyIDs(user string) (ids []string) {
	e.t.Helper()
	out := did(e.t, func(ctx context.Context) (*iam.ListAccessKeysOutput, error) {
		return e.iam(e.admin).ListAccessKeys(ctx, &iam.ListAccessKeysInput{UserName: &user})
	})
	for _, k := range out.AccessKeyMetadata {
		ids = append(ids, *k.AccessKeyId)
	}
	return ids
}

// addRole makes a role with an inline policy, in the account that k is of.
func (e emulator) addRole(k keys, name, trust, policy string) (arn string) {
	e.t.Helper()
	out := did(e.t, func(ctx context.Context) (*iam.CreateRoleOutput, error) {
		return e.iam(k).CreateRole(ctx, &iam.CreateRoleInput{RoleName: &name, AssumeRolePolicyDocument: &trust})
	})
	did(e.t, func(ctx context.Context) (*iam.PutRolePolicyOutput, error) {
		return e.iam(k).PutRolePolicy(ctx, &iam.PutRolePolicyInput{RoleName: &name, PolicyName: aws.String("own"), PolicyDocument: &policy})
	})
	return *out.Role.Arn
}

// elsewhere returns keys of another account. It works until lock.
func (e emulator) elsewhere(account string) keys {
	e.t.Helper()
	out := did(e.t, func(ctx context.Context) (*sts.AssumeRoleOutput, error) {
		return e.sts(e.admin).AssumeRole(ctx, &sts.AssumeRoleInput{
			RoleArn: aws.String("arn:aws:iam::" + account + ":role/setup"), RoleSessionName: aws.String("setup"),
		})
	})
	return keys{*out.Credentials.AccessKeyId, *out.Credentials.SecretAccessKey, *out.Credentials.SessionToken}
}

// identity returns the ARN of whom keys are, or the code of the refusal.
func (e emulator) identity(k keys) (arn, code string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := e.sts(k).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "", codeOf(err)
	}
	return *out.Arn, ""
}

// sent returns a parameter of the last request of an action, for what the emulator takes and forgets.
func (a *asked) sent(action, parameter string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[action].Get(parameter)
}

// made returns the users there are that Coffer has made.
func (e emulator) made() (names []string) {
	e.t.Helper()
	out := did(e.t, func(ctx context.Context) (*iam.ListUsersOutput, error) {
		return e.iam(e.admin).ListUsers(ctx, &iam.ListUsersInput{})
	})
	for _, u := range out.Users {
		if strings.HasPrefix(*u.UserName, "vault-") {
			names = append(names, *u.UserName)
		}
	}
	return names
}

var scope = regexp.MustCompile(`Credential=([^/]+)/[0-9]+/([^/]+/[^/]+)/`)

// record notes what servers under test ask for.
func (a *asked) record(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		form := formOf(r)
		a.mu.Lock()
		if m := scope.FindStringSubmatch(r.Header.Get("Authorization")); m != nil {
			a.scopes[m[1]+"/"+m[2]] = true
		}
		a.last[form.Get("Action")] = form
		a.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// formOf returns what a request asks for, and leaves its body as it was.
func formOf(r *http.Request) url.Values {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	form, _ := url.ParseQuery(string(body)) // the judge has seen it
	return form
}

// unfold takes the element out of refusals that the provider has not around them.
func unfold(answer *http.Response) error {
	if answer.StatusCode != http.StatusForbidden {
		return nil
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	text := strings.NewReplacer("<Errors>", "", "</Errors>", "").Replace(string(body))
	answer.Body = io.NopCloser(strings.NewReader(text))
	answer.ContentLength = int64(len(text))
	answer.Header.Set("Content-Length", strconv.Itoa(len(text)))
	return nil
}

// complete does what the provider does and the emulator does not: no user is deleted that still has something, and there are
// service-specific credentials.
func (e emulator) complete(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		form := formOf(r)
		action, user := form.Get("Action"), form.Get("UserName")
		e.mu.Lock()
		served := e.served[user]
		if action == "DeleteServiceSpecificCredential" && served == form.Get("ServiceSpecificCredentialId") {
			delete(e.served, user)
		}
		e.mu.Unlock()
		switch {
		case action == "ListServiceSpecificCredentials" && served == "", action == "DeleteServiceSpecificCredential":
			answer(w, action, "")
		case action == "ListServiceSpecificCredentials":
			answer(w, action, "<ServiceSpecificCredentials><member><UserName>"+user+"</UserName><ServiceSpecificCredentialId>"+served+
				"</ServiceSpecificCredentialId></member></ServiceSpecificCredentials>")
		case action == "DeleteUser" && (served != "" || e.has(r.Context(), user)):
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, "<ErrorResponse><Error><Type>Sender</Type><Code>DeleteConflict</Code><Message>it has something</Message></Error></ErrorResponse>")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func answer(w io.Writer, action, result string) {
	_, _ = io.WriteString(w, "<"+action+"Response><"+action+"Result>"+result+"</"+action+"Result></"+action+"Response>")
}

// has reports whether a user has what keeps it from being deleted; the emulator itself looks for policies only.
func (e emulator) has(ctx context.Context, user string) bool {
	c := e.iam(e.admin)
	if out, err := c.ListAccessKeys(ctx, &iam.ListAccessKeysInput{UserName: &user}); err == nil && len(out.AccessKeyMetadata) > 0 {
		return true
	}
	if out, err := c.ListGroupsForUser(ctx, &iam.ListGroupsForUserInput{UserName: &user}); err == nil && len(out.Groups) > 0 {
		return true
	}
	if _, err := c.GetLoginProfile(ctx, &iam.GetLoginProfileInput{UserName: &user}); err == nil {
		return true
	}
	if out, err := c.ListMFADevices(ctx, &iam.ListMFADevicesInput{UserName: &user}); err == nil && len(out.MFADevices) > 0 {
		return true
	}
	if out, err := c.ListSigningCertificates(ctx, &iam.ListSigningCertificatesInput{UserName: &user}); err == nil && len(out.Certificates) > 0 {
		return true
	}
	out, err := c.ListSSHPublicKeys(ctx, &iam.ListSSHPublicKeysInput{UserName: &user})
	return err == nil && len(out.SSHPublicKeys) > 0
}
