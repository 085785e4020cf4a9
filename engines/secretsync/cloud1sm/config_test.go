package cloud1sm_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm"
	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

var hang = awstest.Fault{Delay: time.Minute}

func TestCheck(t *testing.T) {
	days := func(n int) *int { return &n }
	for _, test := range []struct {
		name   string
		config cloud1sm.Config
		fields []string // with something wrong
	}{
		{"nothing", cloud1sm.Config{}, nil},
		{"all", cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", Region: "us-gov-west-1", RoleARN: "arn:aws-us-gov:iam::123456789012:role/path/name", ExternalID: "a:b"}, KMSKeyID: "alias/aws/secretsmanager", RecoveryWindowInDays: days(7)}, nil},
		{"one key", cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "AKIAIOSFODNN7EXAMPLE"}}, []string{"secret_access_key"}},
		{"the other key", cloud1sm.Config{Account: cloud1.Account{SecretAccessKey: "x"}}, []string{"access_key_id"}},
		{"a file", cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "@id", SecretAccessKey: "@/etc/key"}}, []string{"access_key_id", "secret_access_key"}},
		{"a header", cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "AKIA\r\nX-Evil: 1", SecretAccessKey: "a\nb"}}, []string{"access_key_id", "secret_access_key"}},
		{"a scope", cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "AKIA/20260101/us-east-1", SecretAccessKey: "ab"}}, []string{"access_key_id"}},
		{"temporary", cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "ASIAIOSFODNN7EXAMPLE", SecretAccessKey: "ab"}}, []string{"access_key_id"}},
		{"another host", cloud1sm.Config{Account: cloud1.Account{Region: "us-east-1.evil.example/"}}, []string{"region"}},
		{"user of a host", cloud1sm.Config{Account: cloud1.Account{Region: "x@evil.example"}}, []string{"region"}},
		{"a port", cloud1sm.Config{Account: cloud1.Account{Region: "us-east-1:8080"}}, []string{"region"}},
		{"a word", cloud1sm.Config{Account: cloud1.Account{Region: "frankfurt"}}, []string{"region"}},
		{"a user's ARN", cloud1sm.Config{Account: cloud1.Account{RoleARN: "arn:aws:iam::123456789012:user/name"}}, []string{"role_arn"}},
		{"external id alone", cloud1sm.Config{Account: cloud1.Account{ExternalID: "abc"}}, []string{"external_id"}},
		{"external id", cloud1sm.Config{Account: cloud1.Account{RoleARN: "arn:aws:iam::123456789012:role/r", ExternalID: "a b"}}, []string{"external_id"}},
		{"long external id", cloud1sm.Config{Account: cloud1.Account{RoleARN: "arn:aws:iam::123456789012:role/r", ExternalID: strings.Repeat("a", 1225)}}, []string{"external_id"}},
		{"kms", cloud1sm.Config{KMSKeyID: "arn:aws:s3:::bucket"}, []string{"kms_key_id"}},
		{"kms elsewhere", cloud1sm.Config{Account: cloud1.Account{Region: "eu-central-1"}, KMSKeyID: "arn:aws:kms:us-east-1:123456789012:key/1"}, []string{"kms_key_id"}},
		{"kms here", cloud1sm.Config{Account: cloud1.Account{Region: "eu-central-1"}, KMSKeyID: "arn:aws:kms:eu-central-1:123456789012:alias/a"}, nil},
		{"too short", cloud1sm.Config{RecoveryWindowInDays: days(6)}, []string{"recovery_window_in_days"}},
		{"too long", cloud1sm.Config{RecoveryWindowInDays: days(31)}, []string{"recovery_window_in_days"}},
		{"negative", cloud1sm.Config{RecoveryWindowInDays: days(-1)}, []string{"recovery_window_in_days"}},
		{"none", cloud1sm.Config{RecoveryWindowInDays: days(0)}, nil},
		{"all wrong", cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "-", Region: "-", RoleARN: "-", ExternalID: "-"}, KMSKeyID: "!", RecoveryWindowInDays: days(1)},
			[]string{"access_key_id", "external_id", "kms_key_id", "recovery_window_in_days", "region", "role_arn", "secret_access_key"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, problem := range test.config.Check() {
				field, text, ok := strings.Cut(problem, ": ")
				if !ok || text == "" {
					t.Errorf("a problem is without a field: %q", problem)
				}
				got = append(got, field)
				if strings.Contains(problem, "evil") {
					t.Errorf("the problem repeats what was given: %q", problem)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, test.fields) {
				t.Errorf("wrong are %v, want %v", got, test.fields)
			}
		})
	}
}

func TestUsualForm(t *testing.T) {
	c := cloud1sm.Config{Account: cloud1.Account{Region: " EU-Central-1 ", AccessKeyID: " AKIAIOSFODNN7EXAMPLE\n", SecretAccessKey: "abc\n"}}
	if problems := c.Check(); problems != nil || c.Region != "eu-central-1" || c.AccessKeyID.Reveal() != "AKIAIOSFODNN7EXAMPLE" || c.SecretAccessKey.Reveal() != "abc" {
		t.Errorf("%v, %+v", problems, c)
	}
}

func TestPlace(t *testing.T) {
	for _, test := range []struct {
		config cloud1sm.Config
		want   string
	}{
		{cloud1sm.Config{}, "cloud1-sm/environment/environment"},
		{cloud1sm.Config{Account: cloud1.Account{Region: "eu-central-1", AccessKeyID: "short"}}, "cloud1-sm/unknown/eu-central-1"},
		// The account of a key is in its id.
		{cloud1sm.Config{Account: cloud1.Account{Region: "eu-central-1", AccessKeyID: "AKIASP2TPHJSQH3FJXYZ"}}, "cloud1-sm/171436882533/eu-central-1"},
		{cloud1sm.Config{Account: cloud1.Account{Region: "eu-central-1", AccessKeyID: "AKIASP2TPHJSQH3FJABC"}}, "cloud1-sm/171436882533/eu-central-1"},
		{cloud1sm.Config{Account: cloud1.Account{Region: "eu-central-1", AccessKeyID: "AKIA1111111111111111"}}, "cloud1-sm/unknown/eu-central-1"},
		{cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "AKIASP2TPHJSQH3FJXYZ", RoleARN: "arn:aws:iam::000000000001:role/r"}}, "cloud1-sm/000000000001/environment"},
	} {
		if got := test.config.Location(); got != test.want {
			t.Errorf("place %q, want %q", got, test.want)
		}
	}
}

func TestShown(t *testing.T) {
	c := cloud1sm.Config{Account: cloud1.Account{AccessKeyID: "AKIA", SecretAccessKey: "x", Region: "eu-central-1", RoleARN: "arn"}}
	want := map[string]any{
		"access_key_id": destination.Mask, "secret_access_key": destination.Mask, "region": "eu-central-1", "role_arn": "arn", "recovery_window_in_days": 30,
	}
	if got := c.Shown(); !maps.Equal(got, want) {
		t.Errorf("shown %v, want %v", got, want)
	}
	if got := new(cloud1sm.Config).Shown(); len(got) != 1 {
		t.Errorf("of nothing is shown %v", got)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", "/nonexistent")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	s := cloud1smtest.New(t)
	id, key := s.Root()
	env := func(values map[string]string) destination.Env {
		return destination.Env{URL: s.URL, Getenv: func(name string) string { return values[name] }}
	}
	empty := func(c *cloud1sm.Config) { *c = cloud1sm.Config{} }
	d := open(t, s, env(map[string]string{"AWS_ACCESS_KEY_ID": id, "AWS_SECRET_ACCESS_KEY": key, "AWS_REGION": s.Region, "AWS_DEFAULT_REGION": "us-east-1"}), empty)
	write(t, d, item("one"))
	holds(t, s, "one")
	d = open(t, s, env(map[string]string{"AWS_ACCESS_KEY_ID": id, "AWS_SECRET_ACCESS_KEY": key, "AWS_DEFAULT_REGION": s.Region}), empty)
	read(t, d)

	d = open(t, s, env(map[string]string{"AWS_REGION": s.Region}), empty)
	_, err := d.Read(t.Context(), name)
	e := failed(t, err, destination.Client, destination.Denied, false)
	if !strings.Contains(e.Text, "access_key_id") {
		t.Errorf("without credentials: %q", e.Text)
	}
	d = open(t, s, env(map[string]string{"AWS_REGION": s.Region, "AWS_ACCESS_KEY_ID": "a\nb", "AWS_SECRET_ACCESS_KEY": "x"}), empty)
	_, err = d.Read(t.Context(), name)
	failed(t, err, destination.Client, destination.Denied, false)

	for _, region := range []string{"", "evil.example/"} {
		_, err = cloud1sm.Type.Open(&cloud1sm.Config{}, env(map[string]string{"AWS_REGION": region}))
		failed(t, err, destination.Client, destination.BadRequest, false)
	}
}

func TestNames(t *testing.T) {
	rules := cloud1sm.Type.Rules
	for name, want := range map[string]string{
		"vault/kv_1234/my-secret": "vault/kv_1234/my-secret", "a b": "a-b", "ümlaut\n": "-mlaut-", "a:b*c": "a-b-c",
		"/_+=.@-": "/_+=.@-", "\xff": "-", "٣": "-",
	} {
		if got := rules.Normalise(name); got != want {
			t.Errorf("%q becomes %q, want %q", name, got, want)
		}
		if problem := rules.CheckName(want); problem != "" {
			t.Errorf("%q: %s", want, problem)
		}
	}
	for _, name := range []string{"", "a b", "a\n", "ü", "a!", strings.Repeat("a", 513)} {
		if rules.CheckName(name) == "" {
			t.Errorf("%q is legal", name)
		}
	}
	long := strings.Repeat("a", 512)
	if problem := rules.CheckName(long); problem != "" {
		t.Errorf("512 characters: %s", problem)
	}
	if long += "b"; rules.Normalise(long) != long {
		t.Error("a name is cut, and so may be that of another secret")
	}
}

func TestCheckTag(t *testing.T) {
	rules := cloud1sm.Type.Rules
	for _, test := range []struct {
		key, value string
		ok         bool
	}{
		{"team", "payments", true}, {"Größe 1_.:/=+-@", "ö", true}, {"k", "", true}, {strings.Repeat("ü", 128), strings.Repeat("ü", 256), true},
		{"", "x", false}, {strings.Repeat("k", 129), "", false}, {"k", strings.Repeat("v", 257), false}, {"aws:x", "", false}, {"AWS:x", "", false},
		{"k\n", "", false}, {"k", "a,b", false}, {"k", "\xff", false}, {"coffer:sync", "x", false},
	} {
		if problem := rules.CheckTag(test.key, test.value); (problem == "") != test.ok {
			t.Errorf("tag %q: %q, want ok %v", test.key, problem, test.ok)
		}
	}
}

// TestLimitsAtTheService holds our limits against those of the vendor's model: what we call legal is taken.
func TestLimitsAtTheService(t *testing.T) {
	s := cloud1smtest.New(t)
	d := open(t, s, destination.Env{}, nil)
	it := item(strings.Repeat("v", cloud1sm.Type.Rules.MaxValue))
	it.Name, it.OwnerTag, it.Token = strings.Repeat("n", 512), strings.Repeat("m", 80), strings.Repeat("t", 64)
	it.Tags = map[string]string{strings.Repeat("ü", 128): strings.Repeat("ü", 256)}
	for i := range cloud1sm.Type.Rules.MaxTags - 1 {
		it.Tags[fmt.Sprint(i)] = ""
	}
	held, err := d.Write(t.Context(), it, destination.Found{Name: it.Name})
	if err != nil {
		t.Fatal(err)
	}
	f, err := d.Read(t.Context(), it.Name)
	if err != nil || f.ID != held.ID || f.OwnerTag != it.OwnerTag || len(f.Value) != len(it.Value) {
		t.Errorf("found %q, %q, %d bytes, %v", f.ID, f.OwnerTag, len(f.Value), err)
	}
	it.Value, it.Token = []byte(strings.Repeat("w", cloud1sm.Type.Rules.MaxValue)), strings.Repeat("u", 32)
	if _, err := d.Write(t.Context(), it, f); err != nil {
		t.Error(err)
	}
}

// TestFields: the fields are ones that the API can declare, and the secret ones are known as such.
func TestFields(t *testing.T) {
	type input struct {
		Name string `json:"name"`
		cloud1sm.Config
	}
	r := engines.NewRouter()
	engines.On(r, engines.Update, "destinations/cloud1-sm/{name}", "Creates a destination.", 0,
		func(context.Context, *engines.Request, *input) (*engines.Response, error) { return nil, nil })
	kind := reflect.TypeFor[cloud1sm.Config]()
	var secret, all []string
	for _, field := range state.Fields(kind) {
		all = append(all, field.Tag.Get("json"))
		if field.Type == reflect.TypeFor[engines.Sensitive]() {
			secret = append(secret, field.Tag.Get("json"))
		}
	}
	if got := strings.Join(secret, " "); got != "access_key_id secret_access_key identity_token_audience identity_token_key" {
		t.Errorf("secret are %s", got)
	}
	if got := strings.Join(all, " "); got != "access_key_id secret_access_key region identity_token_audience identity_token_ttl identity_token_key role_arn external_id kms_key_id replica_regions recovery_window_in_days" {
		t.Errorf("the fields are %s", got)
	}
}
