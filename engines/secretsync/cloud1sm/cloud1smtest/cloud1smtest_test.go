package cloud1smtest_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"
	"github.com/aws/smithy-go"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
)

func sdk(s *cloud1smtest.Server) *secretsmanager.Client {
	id, secret := s.Root()
	return secretsmanager.New(secretsmanager.Options{
		Region: s.Region, BaseEndpoint: &s.URL, Retryer: aws.NopRetryer{}, Credentials: credentials.NewStaticCredentialsProvider(id, secret, ""),
	})
}

func code(err error) string {
	if said, ok := errors.AsType[smithy.APIError](err); ok {
		return said.ErrorCode()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// TestModel: requests that the vendor's model does not have are told, and rejected.
func TestModel(t *testing.T) {
	var mu sync.Mutex
	var told []string
	s := cloud1smtest.New(t, cloud1smtest.Judge(func(v cloud1smtest.Violation) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, v.String())
	}))
	c := sdk(s)
	long := strings.Repeat("x", 65537)
	for _, test := range []struct {
		call func(context.Context) error
		want string
	}{
		{func(ctx context.Context) error {
			_, err := c.CreateSecret(ctx, &secretsmanager.CreateSecretInput{Name: aws.String(long[:513]), SecretString: aws.String("v")})
			return err
		}, "Name: more than 512 characters"},
		{func(ctx context.Context) error {
			_, err := c.CreateSecret(ctx, &secretsmanager.CreateSecretInput{Name: aws.String("n"), SecretString: &long})
			return err
		}, "SecretString: more than 65536 characters"},
		{func(ctx context.Context) error {
			_, err := c.CreateSecret(ctx, &secretsmanager.CreateSecretInput{Name: aws.String("n"), SecretBinary: []byte(long)})
			return err
		}, "SecretBinary: more than 65536 bytes"},
		{func(ctx context.Context) error {
			_, err := c.CreateSecret(ctx, &secretsmanager.CreateSecretInput{Name: aws.String("n"), SecretString: aws.String(""), ClientRequestToken: aws.String("short")})
			return err
		}, "ClientRequestToken: less than 32 characters|SecretString: less than 1 characters"},
		{func(ctx context.Context) error {
			_, err := c.TagResource(ctx, &secretsmanager.TagResourceInput{SecretId: aws.String("n"), Tags: []types.Tag{{Key: aws.String(""), Value: aws.String(long[:257])}}})
			return err
		}, "Tags[0].Key: less than 1 characters|Tags[0].Value: more than 256 characters"},
		{func(ctx context.Context) error {
			_, err := c.ListSecrets(ctx, &secretsmanager.ListSecretsInput{MaxResults: aws.Int32(101)})
			return err
		}, "MaxResults: more than 100 "},
		{func(ctx context.Context) error {
			_, err := c.PutSecretValue(ctx, &secretsmanager.PutSecretValueInput{SecretId: aws.String("n"), SecretString: aws.String("v"), VersionStages: []string{}})
			return err
		}, "VersionStages: less than 1 members"},
	} {
		told = nil
		if got := code(test.call(t.Context())); got != "ValidationException" {
			t.Errorf("%s: answered with %q", test.want, got)
		}
		for i := range told {
			_, told[i], _ = strings.Cut(told[i], ": ")
		}
		if got := strings.Join(told, "|"); got != test.want {
			t.Errorf("told %q, want %q", got, test.want)
		}
	}
}

// TestRefusals is what the service rejects beside its model, by its documentation.
func TestRefusals(t *testing.T) {
	s := cloud1smtest.New(t)
	c := sdk(s)
	s.Put("there", []byte("v"))
	s.Put("scheduled", []byte("v"))
	s.Schedule("scheduled", time.Hour)
	there, _ := s.Secret("there")
	version := func() string {
		is, _ := s.Secret("there")
		for id, labels := range is.Versions {
			if slices.Contains(labels, "AWSCURRENT") {
				return id
			}
		}
		return ""
	}()
	token := aws.String(strings.Repeat("t", 32))
	many := []types.Tag{}
	for i := range 51 {
		many = append(many, types.Tag{Key: aws.String(strings.Repeat("k", i+1)), Value: aws.String("")})
	}
	create := func(in secretsmanager.CreateSecretInput) func(context.Context) error {
		if in.SecretBinary == nil {
			in.SecretString = aws.String("v")
		}
		return func(ctx context.Context) error { _, err := c.CreateSecret(ctx, &in); return err }
	}
	put := func(in secretsmanager.PutSecretValueInput) func(context.Context) error {
		return func(ctx context.Context) error { _, err := c.PutSecretValue(ctx, &in); return err }
	}
	move := func(in secretsmanager.UpdateSecretVersionStageInput) func(context.Context) error {
		in.SecretId = aws.String("there")
		if in.VersionStage == nil {
			in.VersionStage = aws.String("AWSCURRENT")
		}
		return func(ctx context.Context) error { _, err := c.UpdateSecretVersionStage(ctx, &in); return err }
	}
	remove := func(in secretsmanager.DeleteSecretInput) func(context.Context) error {
		return func(ctx context.Context) error { _, err := c.DeleteSecret(ctx, &in); return err }
	}
	for _, test := range []struct {
		name string
		call func(context.Context) error
		want string
	}{
		{"create a bad name", create(secretsmanager.CreateSecretInput{Name: aws.String("a b")}), "InvalidParameterException"},
		{"create what is there", create(secretsmanager.CreateSecretInput{Name: aws.String("there")}), "ResourceExistsException"},
		{"create what is scheduled", create(secretsmanager.CreateSecretInput{Name: aws.String("scheduled")}), "InvalidRequestException"},
		{"create with a text and bytes", create(secretsmanager.CreateSecretInput{Name: aws.String("n"), SecretBinary: []byte("v"), SecretString: aws.String("v")}), "InvalidParameterException"},
		{"create with 51 tags", create(secretsmanager.CreateSecretInput{Name: aws.String("n"), Tags: many}), "InvalidParameterException"},
		{"create with the provider's tags", create(secretsmanager.CreateSecretInput{Name: aws.String("n"), Tags: []types.Tag{{Key: aws.String("AWS:x"), Value: aws.String("")}}}), "InvalidParameterException"},
		{"create with a disabled key", create(secretsmanager.CreateSecretInput{Name: aws.String("n"), KmsKeyId: aws.String("alias/disabled")}), "EncryptionFailure"},
		{"put nothing", put(secretsmanager.PutSecretValueInput{SecretId: aws.String("there")}), "InvalidParameterException"},
		{"put where nothing is", put(secretsmanager.PutSecretValueInput{SecretId: aws.String("n"), SecretString: aws.String("v")}), "ResourceNotFoundException"},
		{"put what is scheduled", put(secretsmanager.PutSecretValueInput{SecretId: aws.String("scheduled"), SecretString: aws.String("v")}), "InvalidRequestException"},
		{"put", put(secretsmanager.PutSecretValueInput{SecretId: &there.ARN, SecretString: aws.String("new"), ClientRequestToken: token, VersionStages: []string{"NEXT"}}), ""},
		{"put the same", put(secretsmanager.PutSecretValueInput{SecretId: &there.ARN, SecretString: aws.String("new"), ClientRequestToken: token}), ""},
		{"put another value", put(secretsmanager.PutSecretValueInput{SecretId: &there.ARN, SecretString: aws.String("other"), ClientRequestToken: token}), "ResourceExistsException"},
		{"move without a from", move(secretsmanager.UpdateSecretVersionStageInput{MoveToVersionId: token}), "InvalidParameterException"},
		{"move from another", move(secretsmanager.UpdateSecretVersionStageInput{MoveToVersionId: token, RemoveFromVersionId: token}), "InvalidParameterException"},
		{"move to none", move(secretsmanager.UpdateSecretVersionStageInput{MoveToVersionId: aws.String(strings.Repeat("n", 32)), RemoveFromVersionId: &version}), "ResourceNotFoundException"},
		{"remove the current label", move(secretsmanager.UpdateSecretVersionStageInput{RemoveFromVersionId: &version}), "InvalidParameterException"},
		{"move", move(secretsmanager.UpdateSecretVersionStageInput{MoveToVersionId: token, RemoveFromVersionId: &version}), ""},
		{"delete in 6 days", remove(secretsmanager.DeleteSecretInput{SecretId: aws.String("there"), RecoveryWindowInDays: aws.Int64(6)}), "InvalidParameterException"},
		{"delete in 31 days", remove(secretsmanager.DeleteSecretInput{SecretId: aws.String("there"), RecoveryWindowInDays: aws.Int64(31)}), "InvalidParameterException"},
		{"delete now and later", remove(secretsmanager.DeleteSecretInput{SecretId: aws.String("there"), RecoveryWindowInDays: aws.Int64(7), ForceDeleteWithoutRecovery: aws.Bool(true)}), "InvalidParameterException"},
		{"delete what is scheduled", remove(secretsmanager.DeleteSecretInput{SecretId: aws.String("scheduled")}), "InvalidRequestException"},
		{"delete what is not there", remove(secretsmanager.DeleteSecretInput{SecretId: aws.String("n")}), "ResourceNotFoundException"},
	} {
		if got := code(test.call(t.Context())); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
	is, _ := s.Secret("there")
	if got := is.Versions[*token]; !slices.Equal(got, []string{"AWSCURRENT", "NEXT"}) || !slices.Equal(is.Versions[version], []string{"AWSPREVIOUS"}) {
		t.Errorf("labels %v", is.Versions)
	}
	if got := s.Actions(); len(got) != 23 {
		t.Errorf("%d calls", len(got))
	}
}

// TestSignatures: everything that is signed is looked at.
func TestSignatures(t *testing.T) {
	s := cloud1smtest.New(t, cloud1smtest.Judge(func(cloud1smtest.Violation) {}))
	id, secret := s.Root()
	const body = `{"SecretId":"n"}`
	for _, test := range []struct {
		name   string
		as     aws.Credentials
		region string
		at     time.Time
		change func(*http.Request)
		want   string
	}{
		{"right", aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, s.Region, time.Now(), nil, "ResourceNotFoundException"},
		{"another secret", aws.Credentials{AccessKeyID: id, SecretAccessKey: "x"}, s.Region, time.Now(), nil, "InvalidSignatureException"},
		{"unknown", aws.Credentials{AccessKeyID: "AKIA", SecretAccessKey: secret}, s.Region, time.Now(), nil, "UnrecognizedClientException"},
		{"a token", aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: "x"}, s.Region, time.Now(), nil, "UnrecognizedClientException"},
		{"another region", aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, "us-east-1", time.Now(), nil, "InvalidSignatureException"},
		{"old", aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, s.Region, time.Now().Add(-6 * time.Minute), nil, "InvalidSignatureException"},
		{"another action", aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, s.Region, time.Now(),
			func(r *http.Request) { r.Header.Set("X-Amz-Target", "secretsmanager.DeleteSecret") }, "InvalidSignatureException"},
		{"none", aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, s.Region, time.Now(),
			func(r *http.Request) { r.Header.Del("Authorization") }, "MissingAuthenticationTokenException"},
		{"half", aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, s.Region, time.Now(),
			func(r *http.Request) { r.Header.Set("Authorization", "AWS4-HMAC-SHA256 x") }, "IncompleteSignatureException"},
		{"unknown action", aws.Credentials{AccessKeyID: id, SecretAccessKey: secret}, s.Region, time.Now(),
			func(r *http.Request) { r.Header.Set("X-Amz-Target", "secretsmanager.Nothing") }, "UnknownOperationException"},
	} {
		r, err := http.NewRequest(http.MethodPost, s.URL+"/", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-amz-json-1.1")
		r.Header.Set("X-Amz-Target", "secretsmanager.DescribeSecret")
		hash := sha256.Sum256([]byte(body))
		if err := v4.NewSigner().SignHTTP(t.Context(), test.as, r, hex.EncodeToString(hash[:]), "secretsmanager", test.region, test.at); err != nil {
			t.Fatal(err)
		}
		if test.change != nil {
			test.change(r)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		var said struct {
			Type string `json:"__type"`
		}
		err = json.NewDecoder(answer.Body).Decode(&said)
		_ = answer.Body.Close()
		if err != nil || said.Type != test.want {
			t.Errorf("%s: %q (%v), want %q", test.name, said.Type, err, test.want)
		}
	}
}

// TestExamples: the vendor's own examples are taken, as far as they are whole.
func TestExamples(t *testing.T) {
	text, err := os.ReadFile("testdata/secretsmanager-examples.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Examples map[string][]struct{ Input json.RawMessage }
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	n := 0
	for action, examples := range file.Examples {
		for _, e := range examples {
			n++
			violations, err := cloud1smtest.Check(action, e.Input)
			if err != nil {
				t.Errorf("%s: %v", action, err)
			}
			for _, v := range violations {
				t.Errorf("the vendor's example: %v", v)
			}
		}
	}
	if n < 20 {
		t.Errorf("there are only %d examples", n)
	}
}
