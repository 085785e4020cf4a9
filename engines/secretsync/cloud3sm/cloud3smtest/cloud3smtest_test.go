package cloud3smtest_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	secretmanager "cloud.google.com/go/secretmanager/apiv1"
	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
)

// document is the vendor's description of the service.
func document(t *testing.T) map[string]any {
	t.Helper()
	raw, err := os.ReadFile("testdata/secretmanager.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// at goes down a document.
func at(t *testing.T, in any, path ...string) map[string]any {
	t.Helper()
	for _, name := range path {
		next, ok := in.(map[string]any)[name]
		if !ok {
			t.Fatalf("the document has no %s", strings.Join(path, "."))
		}
		in = next
	}
	return in.(map[string]any)
}

// TestQuotes: the rules of the fake are the vendor's words.
func TestQuotes(t *testing.T) {
	doc := document(t)
	for rule, quote := range cloud3smtest.Quotes {
		var words any
		if parts := strings.Split(quote.Schema, "."); len(parts) > 1 {
			path := []string{"resources"}
			for _, name := range parts[:len(parts)-1] {
				path = append(path, name, "resources")
			}
			path[len(path)-1] = "methods"
			words = at(t, doc, append(path, parts[len(parts)-1], "parameters", quote.Field)...)["description"]
		} else {
			words = at(t, doc, "schemas", quote.Schema, "properties", quote.Field)["description"]
		}
		if text, _ := words.(string); !strings.Contains(text, quote.Words) {
			t.Errorf("%s: the vendor says %q, not %q", rule, text, quote.Words)
		}
	}
}

// client calls the service with a token.
func client(t *testing.T, s *cloud3smtest.Server) (*secretmanager.Client, context.Context) {
	t.Helper()
	env := s.Env()
	u, err := url.Parse(env.URL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: env.TLS.RootCAs, MinVersion: tls.VersionTLS12})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	api, err := secretmanager.NewClient(t.Context(), option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+s.Token()))
	t.Cleanup(cancel)
	return api, ctx
}

const parent = "projects/" + cloud3smtest.Project

func automatic() *secretmanagerpb.Replication {
	return &secretmanagerpb.Replication{Replication: &secretmanagerpb.Replication_Automatic_{Automatic: &secretmanagerpb.Replication_Automatic{}}}
}

// TestRules drives the fake with requests that the vendor rejects, and with the nearest that it takes.
func TestRules(t *testing.T) {
	s := cloud3smtest.New(t)
	api, ctx := client(t, s)
	made := 0
	create := func(change func(*secretmanagerpb.CreateSecretRequest)) error {
		made++
		in := &secretmanagerpb.CreateSecretRequest{Parent: parent, SecretId: fmt.Sprint("s", made), Secret: &secretmanagerpb.Secret{Replication: automatic()}}
		change(in)
		_, err := api.CreateSecret(ctx, in)
		return err
	}
	many := func(n, bytes int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("k", i)] = strings.Repeat("v", bytes)
		}
		return m
	}
	add := func(data string, sum int64) error {
		p := &secretmanagerpb.SecretPayload{Data: []byte(data)}
		if sum != 0 {
			p.DataCrc32C = &sum
		}
		_, err := api.AddSecretVersion(ctx, &secretmanagerpb.AddSecretVersionRequest{Parent: parent + "/secrets/known", Payload: p})
		return err
	}
	update := func(etag string, mask ...string) error {
		_, err := api.UpdateSecret(ctx, &secretmanagerpb.UpdateSecretRequest{
			Secret: &secretmanagerpb.Secret{Name: parent + "/secrets/known", Etag: etag}, UpdateMask: &fieldmaskpb.FieldMask{Paths: mask},
		})
		return err
	}
	access := func(version string) error {
		_, err := api.AccessSecretVersion(ctx, &secretmanagerpb.AccessSecretVersionRequest{Name: parent + "/secrets/known/versions/" + version})
		return err
	}
	destroy := func(version string) error {
		_, err := api.DestroySecretVersion(ctx, &secretmanagerpb.DestroySecretVersionRequest{Name: parent + "/secrets/known/versions/" + version})
		return err
	}
	id := func(id string) error {
		return create(func(in *secretmanagerpb.CreateSecretRequest) { in.SecretId = id })
	}
	labels := func(m map[string]string) error {
		return create(func(in *secretmanagerpb.CreateSecretRequest) { in.Secret.Labels = m })
	}
	annotations := func(m map[string]string) error {
		return create(func(in *secretmanagerpb.CreateSecretRequest) { in.Secret.Annotations = m })
	}
	tests := []struct {
		name string
		err  error
		want codes.Code
	}{
		{"a secret", id("known"), codes.OK},
		{"ids are unique", id("known"), codes.AlreadyExists},
		{"an id of 255", id(strings.Repeat("i", 255)), codes.OK},
		{"an id of 256", id(strings.Repeat("i", 256)), codes.InvalidArgument},
		{"no id", id(""), codes.InvalidArgument},
		{"an id with a point", id("a.b"), codes.InvalidArgument},
		{"no replication", create(func(in *secretmanagerpb.CreateSecretRequest) { in.Secret.Replication = nil }), codes.InvalidArgument},
		{"no locations", create(func(in *secretmanagerpb.CreateSecretRequest) {
			in.Secret.Replication.Replication = &secretmanagerpb.Replication_UserManaged_{UserManaged: &secretmanagerpb.Replication_UserManaged{}}
		}), codes.InvalidArgument},
		{"a name given", create(func(in *secretmanagerpb.CreateSecretRequest) { in.Secret.Name = "n" }), codes.InvalidArgument},
		{"another project", create(func(in *secretmanagerpb.CreateSecretRequest) { in.Parent = "projects/other" }), codes.PermissionDenied},
		{"64 labels", labels(many(64, 63)), codes.OK},
		{"65 labels", labels(many(65, 1)), codes.InvalidArgument},
		{"a label of 64", labels(many(1, 64)), codes.InvalidArgument},
		{"an upper-case label", labels(map[string]string{"K": "v"}), codes.InvalidArgument},
		{"annotations of nearly 16 KiB", annotations(map[string]string{"k": strings.Repeat("v", 16<<10-2)}), codes.OK},
		{"annotations of 16 KiB", annotations(map[string]string{"k": strings.Repeat("v", 16<<10-1)}), codes.InvalidArgument},
		{"an annotation that ends in a point", annotations(map[string]string{"k.": "v"}), codes.InvalidArgument},
		{"no versions", access("latest"), codes.NotFound},
		{"64 KiB", add(strings.Repeat("v", 64<<10), 0), codes.OK},
		{"more than 64 KiB", add(strings.Repeat("v", 64<<10+1), 0), codes.InvalidArgument},
		{"no value", add("", 0), codes.InvalidArgument},
		{"a wrong checksum", add("v", 1), codes.InvalidArgument},
		{"the checksum of the specification", add("123456789", 0xe3069283), codes.OK}, // RFC 3720 appendix B.4 has the polynomial
		{"a version", access("2"), codes.OK},
		{"a version that is not there", access("3"), codes.NotFound},
		{"no version", access("last"), codes.InvalidArgument},
		{"destroyed", destroy("2"), codes.OK},
		{"destroyed twice", destroy("2"), codes.FailedPrecondition},
		{"what is destroyed", access("latest"), codes.FailedPrecondition},
		{"no mask", update(""), codes.InvalidArgument},
		{"what cannot be changed", update("", "replication"), codes.InvalidArgument},
		{"another etag", update(`"1"`, "labels"), codes.FailedPrecondition},
		{"no etag", update("", "labels"), codes.OK},
	}
	for _, test := range tests {
		if got := status.Code(test.err); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, test.err, test.want)
		}
	}
}

// TestEtags: a change of the secret gives it another, a version none.
func TestEtags(t *testing.T) {
	s := cloud3smtest.New(t)
	api, ctx := client(t, s)
	s.Put("one", "v")
	etag := func() string {
		t.Helper()
		got, err := api.GetSecret(ctx, &secretmanagerpb.GetSecretRequest{Name: parent + "/secrets/one"})
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`^"[0-9a-f]+"$`).MatchString(got.Etag) || got.Name != "projects/"+cloud3smtest.Number+"/secrets/one" {
			t.Errorf("etag %s of %s", got.Etag, got.Name)
		}
		return got.Etag
	}
	first := etag()
	s.Put("one", "w")
	if etag() != first {
		t.Error("a version changes the secret's etag")
	}
	s.Edit("one", func(labels, _ map[string]string) { labels["a"] = "b" })
	if etag() == first {
		t.Error("a change leaves the etag")
	}
	if err := api.DeleteSecret(ctx, &secretmanagerpb.DeleteSecretRequest{Name: parent + "/secrets/one", Etag: first}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("deleting with an old etag: %v", err)
	}
}

// TestAdmission: who is not let in.
func TestAdmission(t *testing.T) {
	s := cloud3smtest.New(t)
	api, ctx := client(t, s)
	get := func(ctx context.Context) error {
		_, err := api.GetSecret(ctx, &secretmanagerpb.GetSecretRequest{Name: parent + "/secrets/one"})
		return err
	}
	if err := get(ctx); status.Code(err) != codes.NotFound {
		t.Errorf("with a token: %v", err)
	}
	if err := get(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	if err := get(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer made-up")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("with another token: %v", err)
	}
	api.CallOptions = new(secretmanager.CallOptions)
	if err := get(ctx); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without a deadline: %v", err)
	}
	s.Grant()
	ctx, cancel := context.WithTimeout(ctx, 1<<40)
	defer cancel()
	if err := get(ctx); status.Code(err) != codes.PermissionDenied {
		t.Errorf("without permission: %v", err)
	}
}
