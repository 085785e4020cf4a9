//go:build e2e

package secretsync_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"

	"github.com/coffer-project/coffer/test/harness"
)

const (
	home    = "eu-central-1" // as the page has it
	account = "123456789012" // the emulator's own, and the page's
)

// emulator is IAM, STS and Secrets Manager as others have written them. Until lock, everybody may do everything there.
type emulator struct {
	t     *testing.T
	own   string // where it is
	url   string // for everybody: it does what the provider does and the emulator does not
	admin keys   // of a user who may do everything

	*watched
}

// watched is what is known of who does what.
type watched struct {
	mu       sync.Mutex
	scopes   map[string][]statement // of limited keys
	served   map[string]bool        // actions that limited keys have had carried out
	rejected []string               // those that they were rejected
}

// keys are the credentials of a client.
type keys struct{ id, secret string }

func newEmulator(t *testing.T) *emulator {
	t.Helper()
	e := &emulator{
		t: t, own: emulate(t), admin: keys{accessKey, secretKey},
		watched: &watched{scopes: map[string][]statement{}, served: map[string]bool{}},
	}
	to, err := url.Parse(e.own)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(e.watch(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // is signed
		},
		ModifyResponse: worded,
	}))
	t.Cleanup(front.Close)
	e.url = front.URL
	e.admin = e.addUser("admin", `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}`)
	return e
}

func (e *emulator) in(t *testing.T) *emulator {
	sub := *e
	sub.t = t
	return &sub
}

// lock turns signatures and policies on, as the provider has them.
func (e *emulator) lock() {
	e.t.Helper()
	answer, err := http.Post(e.own+"/moto-api/reset-auth", "text/plain", strings.NewReader("0"))
	if err != nil {
		e.t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != 200 {
		e.t.Fatalf("reset-auth: status %d", answer.StatusCode)
	}
}

// statement is one of a policy.
type statement struct {
	Effect   string
	Action   texts
	Resource string
}

// texts is one text, or a list of them.
type texts []string

func (l *texts) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*l = texts{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(l))
}

// documented returns the policy that docs/sync-destinations.md wants for a type of destination, and its statements.
func documented(t *testing.T, kind string) (policy string, statements []statement) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "sync-destinations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(page), "\nType `"+kind+"`")
	_, after, _ = strings.Cut(after, "\n```json\n")
	policy, _, found := strings.Cut(after, "```")
	var parsed struct{ Statement []statement }
	if err := json.Unmarshal([]byte(policy), &parsed); !found || err != nil || len(parsed.Statement) == 0 {
		t.Fatalf("docs/sync-destinations.md does not say what AWS has to allow: %v", err)
	}
	return policy, parsed.Statement
}

// actionsOf returns the names of all that statements allow.
func actionsOf(statements []statement) (names []string) {
	for _, s := range statements {
		for _, action := range s.Action {
			names = append(names, action[strings.Index(action, ":")+1:])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// limit makes a user that may do what a policy says. The emulator looks at the actions of calls, and watch at their names.
func (e *emulator) limit(name, policy string, statements []statement) keys {
	e.t.Helper()
	k := e.addUser(name, anywhere(policy))
	e.watchKey(k, statements)
	return k
}

func (e *emulator) watchKey(k keys, statements []statement) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scopes[k.id] = statements
}

var resources = regexp.MustCompile(`"Resource": *"[^"]*"`)

// anywhere is a policy for all names: the emulator asks for the name "*" whatever a call is about.
func anywhere(policy string) string { return resources.ReplaceAllString(policy, `"Resource":"*"`) }

func did[T any](t *testing.T, call func(context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := call(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (e *emulator) iam() *iam.Client {
	return iam.New(iam.Options{
		Region: "us-east-1", BaseEndpoint: &e.url, RetryMaxAttempts: 1, Credentials: credentials.NewStaticCredentialsProvider(e.admin.id, e.admin.secret, ""),
	})
}

// secrets is a client as an application has it.
func (e *emulator) secrets(k keys) *secretsmanager.Client {
	return secretsmanager.New(secretsmanager.Options{
		Region: home, BaseEndpoint: &e.url, RetryMaxAttempts: 1, Credentials: credentials.NewStaticCredentialsProvider(k.id, k.secret, ""),
	})
}

// addUser makes a user with a policy and a key.
func (e *emulator) addUser(name, policy string) keys {
	e.t.Helper()
	did(e.t, func(ctx context.Context) (*iam.CreateUserOutput, error) {
		return e.iam().CreateUser(ctx, &iam.CreateUserInput{UserName: &name})
	})
	e.allow(name, policy)
	return e.addKey(name)
}

// allow replaces the policy of a user.
func (e *emulator) allow(user, policy string) {
	e.t.Helper()
	did(e.t, func(ctx context.Context) (*iam.PutUserPolicyOutput, error) {
		return e.iam().PutUserPolicy(ctx, &iam.PutUserPolicyInput{UserName: &user, PolicyName: aws.String("own"), PolicyDocument: &policy})
	})
}

func (e *emulator) addKey(user string) keys {
	e.t.Helper()
	out := did(e.t, func(ctx context.Context) (*iam.CreateAccessKeyOutput, error) {
		return e.iam().CreateAccessKey(ctx, &iam.CreateAccessKeyInput{UserName: &user})
	})
	return keys{*out.AccessKey.AccessKeyId, *out.AccessKey.SecretAccessKey}
}

func (e *emulator) dropKey(user string, k keys) {
	e.t.Helper()
	did(e.t, func(ctx context.Context) (*iam.DeleteAccessKeyOutput, error) {
		return e.iam().DeleteAccessKey(ctx, &iam.DeleteAccessKeyInput{UserName: &user, AccessKeyId: &k.id})
	})
}

// addRole makes a role with a policy that one user may assume.
func (e *emulator) addRole(name, user, policy string) (arn string) {
	e.t.Helper()
	trust := fmt.Sprintf(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"sts:AssumeRole","Principal":{"AWS":"arn:aws:iam::%s:user/%s"}}]}`, account, user)
	out := did(e.t, func(ctx context.Context) (*iam.CreateRoleOutput, error) {
		return e.iam().CreateRole(ctx, &iam.CreateRoleInput{RoleName: &name, AssumeRolePolicyDocument: &trust})
	})
	did(e.t, func(ctx context.Context) (*iam.PutRolePolicyOutput, error) {
		return e.iam().PutRolePolicy(ctx, &iam.PutRolePolicyInput{RoleName: &name, PolicyName: aws.String("own"), PolicyDocument: &policy})
	})
	return *out.Role.Arn
}

var credential = regexp.MustCompile(`Credential=([^/]+)/`)

// watch notes what limited keys ask for, and holds the names that they ask for against their policies.
func (e *emulator) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
		id := ""
		if m := credential.FindStringSubmatch(r.Header.Get("Authorization")); m != nil {
			id = m[1]
		}
		e.mu.Lock()
		limits, limited := e.scopes[id]
		e.mu.Unlock()
		if !limited || action == "" {
			next.ServeHTTP(w, r)
			return
		}
		answer := &statusOf{ResponseWriter: w}
		if named := nameIn(body); named != "" && !within(limits, action, named) {
			reject(answer, denied, "User is not authorized to perform: secretsmanager:"+action+" because no identity-based policy allows the action")
		} else {
			next.ServeHTTP(answer, r)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		switch {
		case answer.status == 200:
			e.served[action] = true
		case answer.denied:
			e.rejected = append(e.rejected, action)
		}
	})
}

// statusOf remembers how a request was answered.
type statusOf struct {
	http.ResponseWriter
	status int
	denied bool
}

func (s *statusOf) WriteHeader(status int) {
	s.status, s.denied = status, s.Header().Get(errorType) == denied
	s.ResponseWriter.WriteHeader(status)
}

func (s *statusOf) Write(text []byte) (int, error) {
	if s.status == 0 {
		s.WriteHeader(200)
	}
	return s.ResponseWriter.Write(text)
}

const (
	errorType = "X-Amzn-Errortype"
	denied    = "AccessDeniedException"
)

// reject answers as Secrets Manager rejects.
func reject(w http.ResponseWriter, code, message string) {
	h := w.Header()
	h.Set(errorType, code)
	h.Set("Content-Type", "application/x-amz-json-1.1")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{"__type": code, "Message": message})
}

// nameIn returns what a call is about, as an ARN, or "".
func nameIn(body []byte) string {
	var in struct{ SecretId, Name string }
	if json.Unmarshal(body, &in) != nil {
		return ""
	}
	name := in.SecretId + in.Name // there is one of them
	if name == "" || strings.HasPrefix(name, "arn:") {
		return name
	}
	return "arn:aws:secretsmanager:" + home + ":" + account + ":secret:" + name + "-AbCdEf"
}

// within reports whether statements allow an action on a name.
func within(limits []statement, action, arn string) bool {
	return slices.ContainsFunc(limits, func(s statement) bool {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(s.Resource), `\*`, ".*") + "$"
		return s.Effect == "Allow" && slices.Contains(s.Action, "secretsmanager:"+action) && regexp.MustCompile(pattern).MatchString(arn)
	})
}

var (
	codeIn    = regexp.MustCompile(`<Code>([A-Za-z]+)</Code>`)
	messageIn = regexp.MustCompile(`<Message>([^<]*)</Message>`)
)

// codes are what Secrets Manager calls refusals for which the emulator has the words of IAM, in XML, for all services.
var codes = map[string]string{
	"AccessDenied": denied, "SignatureDoesNotMatch": "InvalidSignatureException", "InvalidClientTokenId": "UnrecognizedClientException",
}

// worded puts refusals into the words of the service that was called.
func worded(answer *http.Response) error {
	if answer.StatusCode != http.StatusForbidden || answer.Request.Header.Get("X-Amz-Target") == "" {
		return nil
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	code, message := codeIn.FindSubmatch(body), messageIn.FindSubmatch(body)
	if code == nil || message == nil || codes[string(code[1])] == "" {
		return fmt.Errorf("an answer of the emulator that is not known: %q", body)
	}
	w := httptest.NewRecorder()
	reject(w, codes[string(code[1])], string(message[1]))
	answer.StatusCode, answer.Status, answer.Header = w.Code, "", w.Header()
	answer.ContentLength = int64(w.Body.Len())
	answer.Header.Set("Content-Length", strconv.Itoa(w.Body.Len()))
	answer.Body = io.NopCloser(w.Body)
	return nil
}

// wasRefused returns what limited keys were rejected since it was asked last.
func (e *emulator) wasRefused() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.rejected
	e.rejected = nil
	return was
}

// wasServed reports whether limited keys have had an action carried out.
func (e *emulator) wasServed(action string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served[action]
}

// read returns what an application with boto3 reads, or the code of its refusal.
func (e *emulator) read(k keys, name string, label ...string) (text, rejected string) {
	e.t.Helper()
	root, err := harness.Root()
	if err != nil {
		e.t.Fatal(err)
	}
	dir := filepath.Join(root, "test", "e2e", "cloud")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(dir, "venv", "bin", "python"), append([]string{filepath.Join(dir, "read_secret.py"), e.url, name}, label...)...)
	command.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID="+k.id, "AWS_SECRET_ACCESS_KEY="+k.secret, "AWS_DEFAULT_REGION="+home, "AWS_CONFIG_FILE=/dev/null")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		e.t.Fatal(err)
	}
	var answer struct{ Text, Rejected string }
	if err := json.Unmarshal(out, &answer); err != nil {
		e.t.Fatal(err)
	}
	return answer.Text, answer.Rejected
}
