package cloud

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/cloud/role"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/storage"
)

const (
	somePolicy   = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}]}`
	somePolicies = "arn:aws:iam::aws:policy/ReadOnlyAccess"
)

// fields are the input of a write.
type fields map[string]any

func testMount(t testing.TB) *enginetest.Mount {
	t.Helper()
	return enginetest.New(t, New(Options{}), enginetest.Options{Type: "aws", Path: "aws/"})
}

// rig is a mount with a provider.
type rig struct {
	*enginetest.Mount
	t   testing.TB
	aws *awstest.Server
}

// newRig configures the root credentials; more goes into config/root.
func newRig(t testing.TB, more fields) *rig {
	t.Helper()
	r := &rig{Mount: testMount(t), t: t, aws: awstest.New(t)}
	r.Caller.DisplayName = "somebody"
	r.Caller.Identity = func(name string) (string, bool) {
		value, ok := map[string]string{"identity.entity.name": "bob", "identity.entity.metadata.wild": "*"}[name]
		return value, ok
	}
	hurry(r.Mount)
	key, secret := r.aws.Root()
	config := r.rootConfig(key, secret)
	for name, value := range more {
		config[name] = value
	}
	r.Must(engines.Update, "config/root", config)
	return r
}

// rootConfig is config/root with a key of the provider's.
func (r *rig) rootConfig(key, secret string) fields {
	return fields{"access_key": key, "secret_key": secret, "iam_endpoint": r.aws.URL, "sts_endpoint": r.aws.URL, "max_retries": 0}
}

// setRoot writes it.
func (r *rig) setRoot(key, secret string) {
	r.t.Helper()
	r.Must(engines.Update, "config/root", r.rootConfig(key, secret))
}

// elsewhere makes another account, with a user admin who may do everything.
func (r *rig) elsewhere() *awstest.Account {
	other := r.aws.In("210987654321")
	other.AddUser("admin")
	other.Allow("admin")
	return other
}

// hurry keeps clients from waiting between attempts.
func hurry(m *enginetest.Mount) {
	m.Engine.(*engine).clients.Dial = func(ctx context.Context, o aws.Options) (aws.API, error) {
		o.Backoff = func(int) time.Duration { return time.Millisecond }
		return aws.New(ctx, o)
	}
}

// peer is the mount on another node, or after a restart.
func (r *rig) peer() *rig {
	p := *r
	p.Mount = r.Peer()
	hurry(p.Mount)
	return &p
}

func (r *rig) role(name string, role fields) {
	r.t.Helper()
	r.Must(engines.Update, "roles/"+name, role)
}

// wholeRole is a role that uses every call there is.
var wholeRole = fields{
	"credential_type": role.IAMUser, "policy_arns": somePolicies, "policy_document": somePolicy, "iam_groups": "devs",
	"iam_tags": "team=x", "user_path": "/coffer/", "permissions_boundary_arn": somePolicies,
}

func (r *rig) withUserRole() *rig {
	r.t.Helper()
	r.aws.AddGroup(awstest.Group{Name: "devs", Policies: []string{somePolicies}})
	r.role("dev", wholeRole)
	return r
}

// issue gets credentials and does what the server does with the answer.
func (r *rig) issue(path string, body any) (map[string]any, *engines.Response) {
	r.t.Helper()
	resp := r.Must(engines.Update, path, body)
	r.leased(resp)
	return r.Data(resp), resp
}

// leased stores the lease, as far as the engine notices.
func (r *rig) leased(resp *engines.Response) {
	r.t.Helper()
	if _, err := r.Mount.Mount.ClusterStorage.Commit(r.t.Context(), storage.Batch{Deletes: resp.Lease.Done}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) lease(resp *engines.Response, age time.Duration) engines.LeaseRecord {
	return engines.LeaseRecord{ID: "aws/creds/dev/1", Kind: resp.Lease.Kind, Path: "creds/dev", Internal: resp.Lease.Internal, IssuedAt: time.Now().Add(-age)}
}

func (r *rig) revoke(l engines.LeaseRecord) error {
	return r.Engine.(engines.Leaser).RevokeLease(r.t.Context(), r.Mount.Mount, l)
}

func (r *rig) work() {
	r.t.Helper()
	if err := r.Engine.(engines.Worker).Work(r.t.Context(), r.Mount.Mount, true); err != nil {
		r.t.Errorf("Work: %v", err)
	}
}

func (r *rig) notes() []rollback {
	r.t.Helper()
	entries, err := r.Mount.Mount.ClusterStorage.Scan(r.t.Context(), rollbackPrefix, "", 0)
	if err != nil {
		r.t.Fatal(err)
	}
	var all []rollback
	for _, e := range entries {
		var n rollback
		if err := json.Unmarshal(e.Value, &n); err != nil {
			r.t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// later makes the notes older, and the provider too.
func (r *rig) later(d time.Duration) {
	r.t.Helper()
	r.aws.Advance(d)
	r.change(func(n *rollback) {
		n.CreatedAt, n.Next = n.CreatedAt.Add(-d), n.Next.Add(-d)
		if !n.ReportedAt.IsZero() {
			n.ReportedAt = n.ReportedAt.Add(-d)
		}
	})
}

func (r *rig) change(f func(n *rollback)) {
	r.t.Helper()
	entries, err := r.Mount.Mount.ClusterStorage.Scan(r.t.Context(), rollbackPrefix, "", 0)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		_, err := storage.Update(r.t.Context(), r.Mount.Mount.ClusterStorage, func(t *storage.Txn) error {
			var n rollback
			if _, err := engines.GetRecord(r.t.Context(), t, e.Key, &n); err != nil {
				return err
			}
			f(&n)
			return engines.PutRecord(t, e.Key, &n)
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// users are those that the engine made and are still there.
func (r *rig) users() []string {
	var names []string
	for _, u := range r.aws.Users() {
		if strings.HasPrefix(u.Name, "vault-") {
			names = append(names, u.Name)
		}
	}
	return names
}

// arn asks the provider who some credentials are of, "" if it does not know them.
func (r *rig) arn(data map[string]any) string {
	r.t.Helper()
	text := func(name string) string {
		s, _ := data[name].(string)
		return s
	}
	c, err := aws.New(r.t.Context(), aws.Options{AccessKey: "AKIANOBODYNOBODYNOBO", SecretKey: "unused", STSEndpoint: r.aws.URL, Region: "us-east-1"})
	if err != nil {
		r.t.Fatal(err)
	}
	arn, err := c.CallerIdentity(r.t.Context(), aws.Credentials{
		AccessKey: text("access_key"), SecretKey: engines.Sensitive(text("secret_key")), SessionToken: engines.Sensitive(text("session_token")),
	})
	if err != nil && aws.KindOf(err) != aws.Denied {
		r.t.Fatal(err)
	}
	return arn
}

// nothingLeft checks that no user is there that no lease stands for.
func (r *rig) nothingLeft(what string) {
	r.t.Helper()
	if left := r.users(); left != nil {
		r.t.Errorf("%s: %v is still there", what, left)
	}
	if notes := r.notes(); notes != nil {
		r.t.Errorf("%s: notes are left: %+v", what, notes)
	}
}

func (r *rig) called(action string) int {
	n := 0
	for _, a := range r.aws.Actions() {
		if a == action {
			n++
		}
	}
	return n
}

func wantWarning(t *testing.T, resp *engines.Response, text string) {
	t.Helper()
	if !slices.ContainsFunc(resp.Warnings, func(w string) bool { return strings.Contains(w, text) }) {
		t.Errorf("warnings %q say nothing of %q", resp.Warnings, text)
	}
}
