package root

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/engines/cloud/username"
	"github.com/coffer-project/coffer/engines/enginetest"
)

// fixed is the time of tests: 1700000000.
var fixed = time.Unix(1_700_000_000, 0)

// only is an engine with the paths of the root configuration and no others.
type only struct {
	router  *engines.Router
	clients *Clients
}

func (o *only) Router() *engines.Router { return o.router }

func testMount(t testing.TB, log *slog.Logger) *enginetest.Mount {
	t.Helper()
	build := func(m engines.Mount) (engines.Engine, error) {
		o := &only{engines.NewRouter(), NewClients(log, m)}
		Routes(o.router, func(context.Context, engines.Getter) (map[string]any, error) { return nil, nil })
		return o, nil
	}
	return enginetest.New(t, build, enginetest.Options{Type: "aws", Path: "aws/"})
}

const (
	testKey    = "AKIATESTTESTTESTTEST"
	testSecret = "not-to-be-seen/not+to+be+seen/not-to-be+"
)

// fields is that of a write.
type fields map[string]any

func keys(more fields) fields {
	all := fields{"access_key": testKey, "secret_key": testSecret}
	for name, value := range more {
		all[name] = value
	}
	return all
}

func readRootData(t *testing.T, m *enginetest.Mount) map[string]any {
	t.Helper()
	return m.Data(m.Must(engines.Read, "config/root", nil))
}

func TestRootIsMissingUntilItIsWritten(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	if text := m.Fails(engines.KindNotFound, engines.Read, "config/root", nil); text != "" {
		t.Errorf("text %q, want none", text)
	}
}

// SPEC 4.D: "Reads non-secret values; secret_key is never returned."
func TestRootReadBack(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	resp := m.Must(engines.Update, "config/root", keys(fields{
		"region": "eu-west-1", "iam_endpoint": "https://iam.example.com", "sts_endpoint": "https://sts.example.com/path",
		"sts_region": "eu-central-1", "sts_fallback_endpoints": "https://a.example.com, https://b.example.com:8443",
		"sts_fallback_regions": []string{"eu-west-2", "eu-west-3"}, "max_retries": 4, "username_template": `{{ random 20 }}`,
		"rotation_schedule": "0 3 * * SAT", "rotation_window": "2h", "disable_automated_rotation": true,
	}))
	if resp != nil {
		t.Errorf("write answers %+v, want nothing", resp)
	}
	want := map[string]any{
		"role_arn": "", "identity_token_audience": "", "identity_token_ttl": "0", "max_users": "0",
		"access_key": testKey, "region": "eu-west-1", "iam_endpoint": "https://iam.example.com",
		"sts_endpoint": "https://sts.example.com/path", "sts_region": "eu-central-1",
		"sts_fallback_endpoints": []any{"https://a.example.com", "https://b.example.com:8443"},
		"sts_fallback_regions":   []any{"eu-west-2", "eu-west-3"}, "max_retries": "4", "username_template": `{{ random 20 }}`,
		"rotation_period": "0", "rotation_schedule": "0 3 * * SAT", "rotation_window": "7200", "disable_automated_rotation": true,
		"key_created_at": nil, "next_rotation": nil,
	}
	if got := plain(readRootData(t, m)); !reflect.DeepEqual(got, want) {
		t.Errorf("config/root = %v\nwant %v", got, want)
	}
}

// plain turns numbers into texts, for comparing.
func plain(data map[string]any) map[string]any {
	for name, value := range data {
		if n, ok := value.(fmt.Stringer); ok {
			data[name] = n.String()
		}
	}
	return data
}

// SPEC 4.D: defaults of the root configuration.
func TestRootDefaults(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	m := testMount(t, slog.New(slog.DiscardHandler))
	m.Must(engines.Update, "config/root", keys(nil))
	want := map[string]any{
		"role_arn": "", "identity_token_audience": "", "identity_token_ttl": "0", "max_users": "0",
		"access_key": testKey, "region": "us-east-1", "iam_endpoint": "", "sts_endpoint": "", "sts_region": "",
		"sts_fallback_endpoints": []any{}, "sts_fallback_regions": []any{}, "max_retries": "-1",
		"username_template": username.DefaultTemplate, "rotation_period": "0", "rotation_schedule": "", "rotation_window": "0",
		"disable_automated_rotation": false, "key_created_at": nil, "next_rotation": nil,
	}
	if got := plain(readRootData(t, m)); !reflect.DeepEqual(got, want) {
		t.Errorf("config/root = %v\nwant %v", got, want)
	}
}

// SPEC 4.D: "Overwrites existing ones." An absent field goes back to its default.
func TestRootWriteOverwrites(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	m := testMount(t, slog.New(slog.DiscardHandler))
	m.Must(engines.Update, "config/root", keys(fields{"region": "eu-west-1", "max_retries": 3, "username_template": "{{ uuid | truncate 30 }}", "rotation_period": "24h"}))
	m.Must(engines.Update, "config/root", fields{"access_key": "AKIAOTHEROTHEROTHERO", "secret_key": "other-secret"})
	got := plain(readRootData(t, m))
	if got["access_key"] != "AKIAOTHEROTHEROTHERO" || got["region"] != "us-east-1" || got["max_retries"] != "-1" ||
		got["username_template"] != username.DefaultTemplate || got["rotation_period"] != "0" || got["next_rotation"] != nil {
		t.Errorf("config/root = %v, want defaults for what was absent", got)
	}
}

// Machines with credentials of their own configure no keys. Keys that are forgotten that way are worth a warning.
func TestRootWithoutKeys(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	if resp := m.Must(engines.Update, "config/root", fields{"region": "eu-west-1"}); resp != nil {
		t.Errorf("write answers %+v, want nothing", resp)
	}
	m.Must(engines.Update, "config/root", keys(nil))
	resp := m.Must(engines.Update, "config/root", fields{"region": "eu-west-1"})
	if resp == nil || len(resp.Warnings) != 1 || !strings.Contains(resp.Warnings[0], "are forgotten") {
		t.Errorf("write answers %+v, want a warning about the keys", resp)
	}
	if got := readRootData(t, m); got["access_key"] != "" {
		t.Errorf("access_key = %v", got["access_key"])
	}
}

func TestRootRules(t *testing.T) {
	tests := []struct {
		name string
		body fields
		want string
	}{
		{"secret_key missing", fields{"access_key": testKey}, `"secret_key": is required with access_key`},
		{"access_key missing", fields{"secret_key": testSecret}, `"access_key": is required with secret_key`},
		{"access_key with a blank", fields{"access_key": "a b", "secret_key": testSecret}, `"access_key": may hold visible`},
		{"secret_key with a line break", fields{"access_key": testKey, "secret_key": "a\nb"}, `"secret_key": may hold visible`},
		{"max_retries below -1", keys(fields{"max_retries": -2}), `"max_retries": must be from 0`},
		{"max_retries beyond reason", keys(fields{"max_retries": 1001}), `"max_retries": must be from 0`},
		{"region of another host", keys(fields{"region": "x.example.com/"}), `"region": must be the name of a region`},
		{"sts_region of another host", keys(fields{"sts_region": "-a"}), `"sts_region": must be the name of a region`},
		{"iam_endpoint without scheme", keys(fields{"iam_endpoint": "iam.example.com"}), `"iam_endpoint": must be a URL`},
		{"iam_endpoint without host", keys(fields{"iam_endpoint": "https:///a"}), `"iam_endpoint": must be a URL`},
		{"sts_endpoint of another scheme", keys(fields{"sts_endpoint": "file:///etc/passwd"}), `"sts_endpoint": must be a URL`},
		{"sts_endpoint with a user", keys(fields{"sts_endpoint": "https://u:p@sts.example.com"}), `"sts_endpoint": must not hold a user`},
		{"sts_endpoint with a query", keys(fields{"sts_endpoint": "https://sts.example.com?a=b"}), `"sts_endpoint": must not have a query`},
		{"fallback endpoint malformed", keys(fields{"sts_fallback_endpoints": "https://a.example.com,b", "sts_fallback_regions": "a,b"}), `"sts_fallback_endpoints": element 2 must be a URL`},
		{"fallback region malformed", keys(fields{"sts_fallback_endpoints": "https://a.example.com", "sts_fallback_regions": "a_b"}), `"sts_fallback_regions": element 1 must be`},
		{"fallback lists of unequal length", keys(fields{"sts_fallback_endpoints": "https://a.example.com,https://b.example.com", "sts_fallback_regions": "us-east-1"}), `"sts_fallback_regions": has 1 elements and sts_fallback_endpoints has 2`},
		{"fallback endpoints without regions", keys(fields{"sts_fallback_endpoints": "https://a.example.com"}), `"sts_fallback_regions": has 0 elements`},
		{"username_template that is none", keys(fields{"username_template": "{{ .Foo }}"}), `"username_template": there is no .Foo`},
		{"period with schedule", keys(fields{"rotation_period": "24h", "rotation_schedule": "0 0 * * *"}), `"rotation_schedule": cannot be given together`},
		{"period of less than 10 s", keys(fields{"rotation_period": 9}), `"rotation_period": must be at least 10s`},
		{"negative period", keys(fields{"rotation_period": "-1h"}), `"rotation_period": must not be negative`},
		{"window with period", keys(fields{"rotation_period": "24h", "rotation_window": "1h"}), `rotation_window does not apply to period`},
		{"window alone", keys(fields{"rotation_window": "1h"}), `"rotation_window": is for rotation_schedule only`},
		{"window of less than a minute", keys(fields{"rotation_schedule": "@daily", "rotation_window": "59s"}), `"rotation_window": must be at least a minute`},
		{"schedule of six fields", keys(fields{"rotation_schedule": "0 0 0 * * *"}), `"rotation_schedule": must be five fields`},
		{"schedule of words", keys(fields{"rotation_schedule": "every night"}), `"rotation_schedule": must be five fields`},
		{"schedule with a time zone", keys(fields{"rotation_schedule": "CRON_TZ=Asia/Tokyo 0 0 * * *"}), `"rotation_schedule": is in UTC`},
		{"schedule of a time zone only", keys(fields{"rotation_schedule": "TZ=UTC"}), `"rotation_schedule": is in UTC`},
		{"schedule of a distance", keys(fields{"rotation_schedule": "@every 1s"}), `"rotation_schedule": takes times and no distances`},
		{"schedule that never comes", keys(fields{"rotation_schedule": "0 0 30 2 *"}), `"rotation_schedule": names a day that never comes`},
		{"rotation without a key", fields{"rotation_period": "24h"}, `"access_key": is required with rotation_period`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := testMount(t, slog.New(slog.DiscardHandler)).Fails(engines.KindInvalid, engines.Update, "config/root", tt.body)
			if !strings.Contains(text, tt.want) {
				t.Errorf("%q, want %q in it", text, tt.want)
			}
			if strings.Contains(text, ";") {
				t.Errorf("%q has more than one problem", text)
			}
		})
	}
}

func TestRootRotationLimitsAreInclusive(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	m.Must(engines.Update, "config/root", keys(fields{"rotation_period": "1m"}))
	m.Must(engines.Update, "config/root", keys(fields{"rotation_schedule": "* * * * *", "rotation_window": "1h"}))
}

func TestScheduleIsInUTC(t *testing.T) {
	s, err := parseSchedule("30 3 * * *")
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := time.FixedZone("elsewhere", 5*60*60)
	if got, want := s.Next(fixed.In(elsewhere)), time.Date(2023, 11, 15, 3, 30, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("next %v, want %v", got, want)
	}
}

func TestRootProblemsComeAtOnce(t *testing.T) {
	text := testMount(t, slog.New(slog.DiscardHandler)).Fails(engines.KindInvalid, engines.Update, "config/root", fields{
		"access_key": "a b", "max_retries": -5, "region": "_", "iam_endpoint": "x", "sts_endpoint": "y", "sts_region": "_",
		"sts_fallback_endpoints": "z", "username_template": "{{", "rotation_period": 1, "rotation_schedule": "q", "rotation_window": 1,
	})
	for _, field := range []string{
		"access_key", "secret_key", "max_retries", "region", "iam_endpoint", "sts_endpoint", "sts_region", "sts_fallback_endpoints",
		"sts_fallback_regions", "username_template", "rotation_period", "rotation_schedule", "rotation_window",
	} {
		if !strings.Contains(text, fmt.Sprintf("field %q: ", field)) {
			t.Errorf("%q does not name %s", text, field)
		}
	}
}

func TestRootEndpointWithoutTLSIsWarnedOf(t *testing.T) {
	resp := testMount(t, slog.New(slog.DiscardHandler)).Must(engines.Update, "config/root", keys(fields{
		"iam_endpoint": "http://localhost:5556", "sts_fallback_endpoints": "https://a.example.com,http://b.example.com", "sts_fallback_regions": "a,b",
	}))
	if resp == nil || len(resp.Warnings) != 2 || !strings.HasPrefix(resp.Warnings[0], "iam_endpoint: is a URL without TLS") ||
		!strings.HasPrefix(resp.Warnings[1], "sts_fallback_endpoints: element 2 is a URL without TLS") {
		t.Errorf("write answers %+v, want two warnings", resp)
	}
}

func TestRootTemporaryKeyIsWarnedOf(t *testing.T) {
	resp := testMount(t, slog.New(slog.DiscardHandler)).Must(engines.Update, "config/root", keys(fields{"access_key": "ASIATESTTESTTESTTEST"}))
	if resp == nil || len(resp.Warnings) != 1 || !strings.HasPrefix(resp.Warnings[0], "access_key: is that of temporary credentials") {
		t.Errorf("write answers %+v, want a warning", resp)
	}
}

// SPEC 7: a name that is too long is an error of its making, not of the template's: it is warned of.
func TestRootTemplateThatMakesLongNamesIsWarnedOf(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	resp := m.Must(engines.Update, "config/root", keys(fields{"username_template": "{{ random 65 }}"}))
	if resp == nil || len(resp.Warnings) != 2 || !strings.HasPrefix(resp.Warnings[0], "username_template: made a name of 65 characters for IAM") {
		t.Errorf("write answers %+v, want two warnings", resp)
	}
	if got := readRootData(t, m); got["username_template"] != "{{ random 65 }}" {
		t.Errorf("username_template = %v", got["username_template"])
	}
}

func TestRootNextRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC of Saturday, 1 January 2000
		m := testMount(t, slog.New(slog.DiscardHandler))
		next := func(body fields) any {
			t.Helper()
			m.Must(engines.Update, "config/root", body)
			return readRootData(t, m)["next_rotation"]
		}
		tests := []struct {
			name string
			wait time.Duration
			body fields
			want any
		}{
			{"period", 0, keys(fields{"rotation_period": "24h"}), "2000-01-02T00:00:00Z"},
			{"same again, later", time.Hour, keys(fields{"rotation_period": 86400, "region": "eu-west-1"}), "2000-01-02T00:00:00Z"},
			{"another period", 0, keys(fields{"rotation_period": "12h"}), "2000-01-01T13:00:00Z"},
			{"another key", time.Hour, fields{"access_key": "AKIAOTHER", "secret_key": "s", "rotation_period": "12h"}, "2000-01-01T14:00:00Z"},
			{"schedule", 0, keys(fields{"rotation_schedule": "30 3 * * MON"}), "2000-01-03T03:30:00Z"},
			{"switched off", 0, keys(fields{"rotation_schedule": "30 3 * * MON", "disable_automated_rotation": true}), nil},
			{"switched on", 0, keys(fields{"rotation_schedule": "@daily"}), "2000-01-02T00:00:00Z"},
			{"none", 0, keys(nil), nil},
		}
		for _, tt := range tests {
			time.Sleep(tt.wait)
			if got := next(tt.body); got != tt.want {
				t.Errorf("%s: next_rotation = %v, want %v", tt.name, got, tt.want)
			}
		}
	})
}

// A rotation knows when the key was made; writing the same key again does not forget it, another key does.
func TestRootKeyCreatedAt(t *testing.T) {
	old := &Root{AccessKey: "a", SecretKey: "b", KeyCreatedAt: fixed}
	same, other := &Root{AccessKey: "a", SecretKey: "b"}, &Root{AccessKey: "a", SecretKey: "c"}
	same.succeed(old, fixed)
	other.succeed(old, fixed)
	if !same.KeyCreatedAt.Equal(fixed) || !other.KeyCreatedAt.IsZero() {
		t.Errorf("key_created_at = %v and %v, want %v and none", same.KeyCreatedAt, other.KeyCreatedAt, fixed)
	}
	if got := same.data()["key_created_at"]; got != "2023-11-14T22:13:20Z" {
		t.Errorf("key_created_at = %v", got)
	}
}

func TestRootKeyOfARotationThatIsReplacedIsWarnedOf(t *testing.T) {
	tests := []struct {
		name     string
		old, new Root
		want     string
	}{
		{"nothing before", Root{}, Root{AccessKey: "a"}, ""},
		{"another key", Root{AccessKey: "a"}, Root{AccessKey: "b"}, ""},
		{"the same key", Root{AccessKey: "a", KeyCreatedAt: fixed}, Root{AccessKey: "a"}, ""},
		{"the rotated key with another secret", Root{AccessKey: "a", SecretKey: "b", KeyCreatedAt: fixed}, Root{AccessKey: "a", SecretKey: "c"}, "provider (a)"},
		{"the same key with another secret", Root{AccessKey: "a", SecretKey: "b"}, Root{AccessKey: "a", SecretKey: "c"}, ""},
		{"no key any more", Root{AccessKey: "a"}, Root{}, "are forgotten"},
		{"another than the rotated key", Root{AccessKey: "a", KeyCreatedAt: fixed}, Root{AccessKey: "b"}, "delete it at the provider (a)"},
		{"no rotated key any more", Root{AccessKey: "a", KeyCreatedAt: fixed}, Root{}, "delete it at the provider (a)"},
	}
	for _, tt := range tests {
		if got := tt.new.loses(&tt.old); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q in it", tt.name, got, tt.want)
		}
	}
}

func FuzzSchedule(f *testing.F) {
	for _, seed := range []string{"0 3 * * SAT", "@daily", "@every 1m", "TZ=UTC", "*/0 * * * *", "0-59/7,3 1-2 ? JAN-mar 0", "0 0 31 2 *", "@"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseSchedule(text); err == nil && !s.Next(fixed).After(fixed) {
			t.Errorf("%q is due in the past", text)
		}
	})
}

// The secret is in no answer, error or log, whatever is wrong with the request.
func TestRootSecretIsNotShown(t *testing.T) {
	var log bytes.Buffer
	m := testMount(t, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for _, body := range []fields{
		keys(nil), keys(fields{"access_key": ""}), keys(fields{"max_retries": -7, "region": "?"}), keys(fields{"username_template": "{{"}),
		keys(fields{"secret_key": testSecret + "\n" + testSecret}), keys(fields{"secret_key": strings.Repeat(testSecret, 100)}),
	} {
		resp, err := m.Do(engines.Update, "config/root", body)
		if text := fmt.Sprintf("%+v %v", resp, err); strings.Contains(text, testSecret) {
			t.Errorf("the secret is in %q", text)
		}
	}
	if text := fmt.Sprint(readRootData(t, m)); strings.Contains(text, testSecret) || strings.Contains(text, "secret_key") {
		t.Errorf("the secret is in %q", text)
	}
	if strings.Contains(log.String(), testSecret) {
		t.Error("the secret is in the log")
	}
}

// The provider is reached as configured, and from the next request on as it is configured then. The endpoint does not check
// that credentials are valid.
func TestRootReachesTheProvider(t *testing.T) {
	s := awstest.New(t)
	m := testMount(t, slog.New(slog.DiscardHandler))
	e := m.Engine.(*only).clients
	id, secret := s.Root()
	write := func(id, secret string) {
		t.Helper()
		m.Must(engines.Update, "config/root", fields{"access_key": id, "secret_key": secret, "iam_endpoint": s.URL, "sts_endpoint": s.URL, "max_retries": 0})
	}
	write(id, "not-the-secret")
	var failure *aws.Error
	if _, err := mustAPI(t, e, m).CallerIdentity(t.Context(), aws.Credentials{}); !errors.As(err, &failure) || failure.Kind != aws.Denied {
		t.Errorf("with a wrong secret: %v, want it denied", err)
	}
	write(id, secret)
	api := mustAPI(t, e, m)
	if arn, err := api.CallerIdentity(t.Context(), aws.Credentials{}); err != nil || !strings.HasSuffix(arn, "/root-user") {
		t.Errorf("CallerIdentity = %q, %v", arn, err)
	}

	// The names of the default template are names there. The server judges what it is sent.
	r, _, err := Get(t.Context(), m.Mount.Storage)
	if err != nil {
		t.Fatal(err)
	}
	user, errUser := username.New(r.UsernameTemplate, username.IAM, "ldap-bob@example.com", strings.Repeat("long ", 20))
	federated, errFederated := username.New(r.UsernameTemplate, username.STS, "ldap-bob@example.com", "role")
	if errUser != nil || errFederated != nil {
		t.Fatal(errUser, errFederated)
	}
	if _, err := api.CreateUser(t.Context(), aws.NewUser{Name: user}); err != nil {
		t.Errorf("CreateUser: %v", err)
	}
	if _, err := api.GetFederationToken(t.Context(), aws.Federation{Name: federated, Policy: `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}`, TTL: time.Hour}); err != nil {
		t.Errorf("GetFederationToken: %v", err)
	}
}

// fakeAPI tells clients apart.
type fakeAPI struct {
	aws.API
	options aws.Options
}

// countingClients makes the engine's clients fakes, and returns the options of those that were made.
func countingClients(m *enginetest.Mount) (e *Clients, made func() []aws.Options) {
	var mu sync.Mutex
	var all []aws.Options
	e = m.Engine.(*only).clients
	e.Dial = func(_ context.Context, o aws.Options) (aws.API, error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, o)
		return &fakeAPI{options: o}, nil
	}
	return e, func() []aws.Options {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func mustAPI(t *testing.T, e *Clients, m *enginetest.Mount, through ...aws.AssumeRole) aws.API {
	t.Helper()
	api, err := e.API(t.Context(), m.Mount, through...)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func TestClientIsMadeOncePerConfiguration(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	e, made := countingClients(m)

	first := mustAPI(t, e, m)
	if o := made()[0]; !reflect.DeepEqual(o, aws.Options{MaxRetries: -1}) {
		t.Errorf("options without a configuration: %+v, want defaults", o)
	}
	m.Must(engines.Update, "config/root", keys(fields{
		"region": "r", "iam_endpoint": "https://i", "sts_endpoint": "https://s", "sts_region": "t", "max_retries": 2,
		"sts_fallback_endpoints": "https://f,https://g", "sts_fallback_regions": "f,g",
	}))
	second := mustAPI(t, e, m)
	want := aws.Options{
		AccessKey: testKey, SecretKey: testSecret, Region: "r", IAMEndpoint: "https://i", STSEndpoint: "https://s", STSRegion: "t",
		STSFallbacks: []aws.Endpoint{{URL: "https://f", Region: "f"}, {URL: "https://g", Region: "g"}}, MaxRetries: 2,
	}
	if got := second.(*fakeAPI).options; first == second || !reflect.DeepEqual(got, want) {
		t.Errorf("options %+v, want %+v", got, want)
	}
	if mustAPI(t, e, m) != second || len(made()) != 2 {
		t.Errorf("%d clients made, want 2", len(made()))
	}

	// What says nothing about the way to the provider changes nothing.
	r, _, err := Get(t.Context(), m.Mount.Storage)
	if err != nil {
		t.Fatal(err)
	}
	r.NextRotation, r.UsernameTemplate, r.KeyCreatedAt = fixed, "x", fixed
	if api, err := e.For(t.Context(), r, nil); err != nil || api != second {
		t.Errorf("another client after a change of the next rotation (%v)", err)
	}
	// Everything else does, the secret too, although it does not print.
	for name, change := range map[string]func(*Root){
		"access_key": func(r *Root) { r.AccessKey = "x" }, "secret_key": func(r *Root) { r.SecretKey = "x" },
		"region": func(r *Root) { r.Region = "x" }, "iam_endpoint": func(r *Root) { r.IAMEndpoint = "https://x" },
		"sts_endpoint": func(r *Root) { r.STSEndpoint = "https://x" }, "sts_region": func(r *Root) { r.STSRegion = "x" },
		"sts_fallback_endpoints": func(r *Root) { r.STSFallbacks = []string{"https://x", "https://y"} },
		"sts_fallback_regions":   func(r *Root) { r.FallbackRegions = []string{"x", "y"} }, "max_retries": func(r *Root) { r.MaxRetries = 9 },
	} {
		before, changed := mustAPI(t, e, m), *r
		change(&changed)
		if api, err := e.For(t.Context(), &changed, nil); err != nil || api == before {
			t.Errorf("the same client after a change of %s (%v)", name, err)
		}
	}
}

func TestClientsThroughRoles(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	e, made := countingClients(m)
	a, b := aws.AssumeRole{RoleARN: "arn:aws:iam::1:role/a", Session: "s"}, aws.AssumeRole{RoleARN: "arn:aws:iam::1:role/a", Session: "s", ExternalID: "x"}
	ways := [][]aws.AssumeRole{nil, {a}, {b}, {a, b}, {b, a}}
	seen := map[aws.API]bool{}
	for range 2 {
		for _, way := range ways {
			api := mustAPI(t, e, m, way...)
			seen[api] = true
			if got := api.(*fakeAPI).options.AssumeRoles; !reflect.DeepEqual(got, way) {
				t.Errorf("through %v, want %v", got, way)
			}
		}
	}
	if len(seen) != len(ways) || len(made()) != len(ways) {
		t.Errorf("%d clients, %d made, want %d", len(seen), len(made()), len(ways))
	}
	for i := range 2 * maxClients {
		mustAPI(t, e, m, aws.AssumeRole{RoleARN: fmt.Sprint(i)})
	}
	if got := len(e.kept); got != maxClients {
		t.Errorf("%d clients kept, want %d", got, maxClients)
	}
}

func TestClientThatCannotBeMadeIsTriedAgain(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	e, _ := countingClients(m)
	works := e.Dial
	failure := errors.New("no")
	e.Dial = func(context.Context, aws.Options) (aws.API, error) { return nil, failure }
	if _, err := e.API(t.Context(), m.Mount); !errors.Is(err, failure) {
		t.Errorf("api: %v, want %v", err, failure)
	}
	e.Dial = works
	mustAPI(t, e, m)
}

func TestClientsAtOnceAreOne(t *testing.T) {
	m := testMount(t, slog.New(slog.DiscardHandler))
	e, _ := countingClients(m)
	var got sync.Map
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			api, err := e.API(t.Context(), m.Mount)
			if err != nil {
				t.Error(err)
			}
			got.Store(api, true)
		})
	}
	wg.Wait()
	n := 0
	got.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d clients for the same configuration, want 1", n)
	}
}
