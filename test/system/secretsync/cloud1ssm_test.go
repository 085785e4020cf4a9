//go:build e2e

package secretsync_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/ssm/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1ssm"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// parameters is the emulator of AWS as a parameter store, emptied, with faults in front.
type parameters struct {
	api    *ssm.Client // as another client uses it
	faults *desttest.Faults
	front  string
}

func newParameters(t *testing.T, emulator string) *parameters {
	t.Helper()
	p := &parameters{}
	p.faults, p.front = fronted(t, emulator, "InternalServerError", "GetParameter", "DescribeParameters", "ListTagsForResource")
	p.api = ssm.New(ssm.Options{
		Region: region, BaseEndpoint: &emulator, Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	})
	return p
}

func (p *parameters) Open(t *testing.T) destination.Destination {
	return p.open(t, func(c *cloud1ssm.Config) { c.Tier = "Intelligent-Tiering" })
}

func (p *parameters) open(t *testing.T, change func(*cloud1ssm.Config)) destination.Destination {
	t.Helper()
	c := &cloud1ssm.Config{Account: cloud1.Account{AccessKeyID: accessKey, SecretAccessKey: secretKey, Region: region}}
	change(c)
	if problems := c.Check(); problems != nil {
		t.Fatal(problems)
	}
	client := &http.Client{}
	t.Cleanup(client.CloseIdleConnections)
	d, err := cloud1ssm.Type.Open(c, destination.Env{URL: p.front, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (p *parameters) Put(t *testing.T, name, value string) {
	t.Helper()
	_, err := p.api.PutParameter(t.Context(), &ssm.PutParameterInput{Name: &name, Value: &value, Type: types.ParameterTypeSecureString, Overwrite: aws.Bool(true)})
	if err != nil {
		t.Fatal(err)
	}
}

func (p *parameters) Get(t *testing.T, name string) (value string, ok bool) {
	t.Helper()
	out, err := p.api.GetParameter(t.Context(), &ssm.GetParameterInput{Name: &name, WithDecryption: aws.Bool(true)})
	if err != nil {
		return "", false
	}
	return *out.Parameter.Value, true
}

func (p *parameters) Fail(f desttest.Fault) { p.faults.Set(f) }

func (p *parameters) Secrets() []string { return []string{accessKey, secretKey} }

// TestCloud1SSM runs the suite, and what is AWS's own, on the emulator, with the vendor's SDK as the other client.
func TestCloud1SSM(t *testing.T) {
	emulator := emulate(t)
	t.Run("suite", func(t *testing.T) {
		desttest.Run(t, cloud1ssm.Type, func(t *testing.T) desttest.Fake { return newParameters(t, emulator) })
	})
	t.Run("what is written", func(t *testing.T) {
		const name = "/vault/kv_1234/my-secret"
		p := newParameters(t, emulator)
		d := p.open(t, func(c *cloud1ssm.Config) { c.Tier, c.KMSKeyID = "Advanced", "alias/mine" })
		for _, value := range []string{"one", "two <&>", strings.Repeat("x", 8192)} {
			write(t, d, name, value)
			if got, _ := p.Get(t, name); got != value {
				t.Errorf("%.10q is read as %.10q", value, got)
			}
		}
		out, err := p.api.DescribeParameters(t.Context(), &ssm.DescribeParametersInput{})
		if err != nil || len(out.Parameters) != 1 {
			t.Fatalf("there are %+v, %v", out, err)
		}
		is := out.Parameters[0]
		if is.Type != types.ParameterTypeSecureString || is.Tier != types.ParameterTierAdvanced || is.Version != 3 || aws.ToString(is.KeyId) != "alias/mine" {
			t.Errorf("it is %+v", is)
		}
		write(t, p.open(t, func(*cloud1ssm.Config) {}), name, "four")
		if out, err = p.api.DescribeParameters(t.Context(), &ssm.DescribeParametersInput{}); err != nil || out.Parameters[0].Tier != types.ParameterTierAdvanced || aws.ToString(out.Parameters[0].KeyId) != "alias/mine" {
			t.Errorf("without tier and key it becomes %+v, %v", out.Parameters[0], err)
		}
		tags, err := p.api.ListTagsForResource(t.Context(), &ssm.ListTagsForResourceInput{ResourceType: types.ResourceTypeForTaggingParameter, ResourceId: aws.String(name)})
		if err != nil || len(tags.TagList) != 1 || *tags.TagList[0].Key != "coffer:sync" || *tags.TagList[0].Value != "mark" {
			t.Errorf("its tags are %+v, %v", tags, err)
		}
	})
	t.Run("what docs/sync-destinations.md allows is what is called", func(t *testing.T) {
		p := newParameters(t, emulator)
		var mu sync.Mutex
		called := map[string]bool{}
		next := p.faults.Next
		p.faults.Next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
			called[action] = true
			mu.Unlock()
			next.ServeHTTP(w, r)
		})
		d := p.Open(t)
		write(t, d, "one", "1")
		p.Put(t, "two", "2")
		write(t, d, "two", "3")
		for f, err := range d.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if f, err = d.Read(t.Context(), f.Name); err != nil {
				t.Fatal(err)
			}
			if err := d.Delete(t.Context(), f); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range d.Verify(t.Context()) {
			if !c.OK && !c.Unknown {
				t.Errorf("verify: %+v", c)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		_, statements := documented(t, "cloud1-ssm")
		if got, want := slices.Sorted(maps.Keys(called)), actionsOf(statements); !slices.Equal(got, want) {
			t.Errorf("called are %q, docs/sync-destinations.md allows %q", got, want)
		}
	})
}
