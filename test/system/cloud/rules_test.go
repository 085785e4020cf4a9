package cloud_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
	"github.com/coffer-project/coffer/test/harness"
)

// The rules of RULES.md, on real servers.

// TestCloudRoot is about config/root and config/rotate-root.
func TestCloudRoot(t *testing.T) {
	t.Parallel()
	m := enable(t, alone(t, "root"), "cloud")
	t.Run("there is none at first", func(t *testing.T) {
		wantStatus(t, "read", m.admin("GET", "config/root", nil), 404)
	})
	t.Run("refused", func(t *testing.T) {
		m := m.in(t)
		before := m.read("config/root")
		for name, tt := range map[string]struct {
			in    object
			words []string
		}{
			"access_key is required with secret_key":                 {object{"access_key": nil}, []string{`"access_key"`, "required"}},
			"secret_key is required with access_key":                 {object{"secret_key": nil}, []string{`"secret_key"`, "required"}},
			"max_retries is -1 or more":                              {object{"max_retries": -2}, []string{`"max_retries"`}},
			"max_retries is a number":                                {object{"max_retries": "often"}, []string{"max_retries"}},
			"region is the name of one":                              {object{"region": "eu west"}, []string{`"region"`}},
			"iam_endpoint is a URL":                                  {object{"iam_endpoint": "iam"}, []string{`"iam_endpoint"`}},
			"sts_endpoint is a URL":                                  {object{"sts_endpoint": "ftp://sts"}, []string{`"sts_endpoint"`}},
			"username_template is one":                               {object{"username_template": "{{ .Nobody }}"}, []string{`"username_template"`}},
			"all problems are named at once":                         {object{"access_key": nil, "max_retries": -9, "region": "?", "iam_endpoint": "x"}, []string{`"access_key"`, `"max_retries"`, `"region"`, `"iam_endpoint"`}},
			"one of rotation_period and rotation_schedule":           {object{"rotation_period": "24h", "rotation_schedule": "0 0 * * SAT"}, []string{`"rotation_schedule"`}},
			"a fallback region for each endpoint":                    {object{"sts_fallback_endpoints": m.aws.URL}, []string{`"sts_fallback_regions"`}},
			"a rotation needs a key":                                 {object{"access_key": nil, "secret_key": nil, "rotation_period": "24h"}, []string{`"access_key"`}},
			"rotation_window is for a schedule and a minute or more": {object{"rotation_schedule": "@daily", "rotation_window": "59s"}, []string{`"rotation_window"`}},
		} {
			t.Run(name, func(t *testing.T) {
				m := *m
				m.t = t
				m.refused("config/root", m.settings(tt.in), tt.words...)
			})
		}
		if after := m.read("config/root"); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("what was refused changed the configuration: %v", after)
		}
	})
	t.Run("read answers what was set without secret_key", func(t *testing.T) {
		m := m.in(t)
		template := `vault-{{ .PolicyName }}-{{ random 8 }}`
		m.configure(object{"max_retries": 3, "username_template": template})
		a := m.admin("GET", "config/root", nil)
		key, secret := m.aws.Root()
		got := dataOf(t, a)
		wantData(t, got, object{
			"access_key": key, "region": "eu-west-1", "iam_endpoint": m.aws.URL, "sts_endpoint": m.aws.URL, "max_retries": 3, "username_template": template,
		})
		if _, there := got["secret_key"]; there || strings.Contains(string(a.Body), secret) {
			t.Error("the secret key is answered")
		}
	})
	t.Run("what is left out goes back to its default", func(t *testing.T) {
		m := m.in(t)
		m.configure(object{"max_retries": nil, "region": nil})
		got := m.read("config/root")
		wantData(t, got, object{"max_retries": -1, "region": "us-east-1", "rotation_period": 0})
		if got["username_template"] == "" {
			t.Error("the default template is not shown")
		}
	})
	t.Run("credentials are not checked when they are written", func(t *testing.T) {
		m := m.in(t)
		m.configure(object{"access_key": "AKIAXXXXXXXXXXXXXXXX", "secret_key": "nobody's"})
		if called := m.aws.Actions(); len(called) != 0 {
			t.Errorf("the provider was asked: %q", called)
		}
		m.users("dev", nil)
		wantStatus(t, "credentials", m.admin("GET", "creds/dev", nil), 400, "InvalidClientTokenId")
	})
	t.Run("max_retries", func(t *testing.T) {
		m := m.in(t)
		m.role("session", object{"credential_type": "session_token"})
		for _, n := range []int{0, 1} {
			m.configure(object{"max_retries": n})
			m.aws.Forget()
			m.aws.FailNext(100, "GetSessionToken", awstest.Fault{Status: 503, Code: "ServiceUnavailable"})
			wantStatus(t, "credentials", m.admin("GET", "sts/session", nil), 502)
			if got := len(m.aws.Calls()); got != n+1 {
				t.Errorf("max_retries %d: %d calls", n, got)
			}
		}
	})
	t.Run("region and endpoints", func(t *testing.T) {
		m := m.in(t)
		other := m.aws.Listen()
		m.configure(object{"region": "ap-south-1", "sts_endpoint": other})
		m.users("dev", nil)
		m.role("session", object{"credential_type": "session_token"})
		m.creds("dev")
		m.creds("session")
		for _, c := range m.aws.Calls() {
			want := map[string]string{"iam": m.aws.URL, "sts": other}[c.Service]
			if c.Endpoint != want || c.Service == "sts" && c.Region != "ap-south-1" {
				t.Errorf("%s came to %s for the region %q", c.Action, c.Endpoint, c.Region)
			}
		}
	})
	t.Run("endpoints without TLS are warned of", func(t *testing.T) {
		wantStatus(t, "config", m.in(t).configure(), 200, `"warnings":[`, "iam_endpoint", "sts_endpoint", "TLS")
	})
	t.Run("username_template", func(t *testing.T) { usernames(t, m.in(t)) })
	t.Run("a generated username is too long", func(t *testing.T) {
		m := m.in(t)
		m.users("dev", nil)
		m.role("federation", object{"credential_type": "federation_token", "policy_document": document})
		for _, tt := range []struct {
			kind, role string
			limit      int
		}{{"IAM", "dev", 64}, {"STS", "federation", 32}} {
			for length, status := range map[int]int{tt.limit: 200, tt.limit + 1: 500} {
				m.configure(object{"username_template": fmt.Sprintf(`{{ if eq .Type %q }}{{ random %d }}{{ else }}{{ random 8 }}{{ end }}`, tt.kind, length)})
				m.aws.Forget()
				a := m.admin("GET", "creds/"+tt.role, nil)
				wantStatus(t, fmt.Sprintf("%d characters for %s", length, tt.kind), a, status)
				if status == 500 && !strings.Contains(string(a.Body), "username_template") {
					t.Errorf("the answer does not say why: %.200s", a.Body)
				}
				if called := m.aws.Actions(); status == 500 && len(called) > 0 {
					t.Errorf("%s: the provider was asked all the same: %q", tt.kind, called)
				}
			}
		}
	})
	t.Run("rotate-root", func(t *testing.T) { rotateRoot(t, m) })
}

// usernames has a template that tells both cases apart.
func usernames(t *testing.T, m *mount) {
	m.users("dev", nil)
	m.role("federation", object{"credential_type": "federation_token", "policy_document": document})
	m.configure(object{"username_template": `{{ if eq .Type "STS" }}s-{{ .PolicyName }}{{ else }}i-{{ .DisplayName }}-{{ .PolicyName }}-{{ random 4 }}{{ end }}`})
	// The display name of a login is part of it.
	token := dataOfAuth(t, m.node.MustDo("POST", "/v1/auth/token/create", object{"display_name": "alice", "policies": "root"}))
	c := issuedOf(t, send(t, m.node, "GET", m.name+"/creds/dev", token, nil))
	if name := m.user(c.Data.AccessKey).Name; !strings.HasPrefix(name, "i-token-alice-dev-") {
		t.Errorf("the user is %q", name)
	}
	if who := m.owner(m.creds("federation")); !strings.HasSuffix(who, ":federated-user/s-federation") {
		t.Errorf("the federated user is %q", who)
	}
	m.configure()
	if name := m.user(m.creds("dev").Data.AccessKey).Name; !strings.HasPrefix(name, "vault-") || len(name) > 64 {
		t.Errorf("the built-in template makes %q", name)
	}
}

func dataOfAuth(t *testing.T, a harness.Answer) string {
	t.Helper()
	var out struct {
		Auth struct {
			Token string `json:"client_token"`
		}
	}
	a.Decode(t, &out)
	return out.Auth.Token
}

func rotateRoot(t *testing.T, parent *mount) {
	m := parent.in(t)
	m.users("dev", nil)
	t.Run("only with static credentials", func(t *testing.T) {
		m := m.in(t)
		m.configure(object{"access_key": nil, "secret_key": nil})
		wantStatus(t, "rotate", m.admin("POST", "config/rotate-root", nil), 400, "access_key")
	})
	t.Run("refused if the user has another key", func(t *testing.T) {
		m := m.in(t)
		before := m.read("config/root")["access_key"]
		other := m.aws.AddKey("root-user")
		defer m.aws.DropKey(other.ID)
		wantStatus(t, "rotate", m.admin("POST", "config/rotate-root", nil), 400)
		wantData(t, m.read("config/root"), object{"access_key": before})
		if slices.Contains(m.aws.Actions(), "DeleteAccessKey") || len(m.aws.Keys("root-user")) != 2 {
			t.Error("a key was deleted")
		}
		m.creds("dev")
	})
	t.Run("answers the new access key and never its secret", func(t *testing.T) {
		m := m.in(t)
		old := m.aws.Keys("root-user")[0]
		a := m.admin("POST", "config/rotate-root", nil)
		keys := m.aws.Keys("root-user")
		if len(keys) != 1 || keys[0].ID == old.ID {
			t.Fatalf("the user has %d keys", len(keys))
		}
		wantData(t, dataOf(t, a), object{"access_key": keys[0].ID})
		if strings.Contains(string(a.Body), keys[0].Secret) {
			t.Error("the secret key is answered")
		}
		got := m.read("config/root")
		wantData(t, got, object{"access_key": keys[0].ID})
		if got["key_created_at"] == nil {
			t.Error("the age of the key is not known")
		}
		if m.identity(old.ID, old.Secret, nil) != "" {
			t.Error("the old key still works")
		}
		m.aws.Forget()
		m.creds("dev")
		if c := m.sole("CreateUser"); c.AccessKey != keys[0].ID {
			t.Error("the new key is not used")
		}
	})
	t.Run("a new key that is not valid yet", func(t *testing.T) {
		m := m.in(t)
		m.aws.KeyPropagation(time.Second)
		defer m.aws.KeyPropagation(0)
		dataOf(t, m.admin("POST", "config/rotate-root", nil))
		m.creds("dev")
	})
}

// TestCloudEnvironment is not parallel: it changes the environment that servers start in.
func TestCloudEnvironment(t *testing.T) {
	p := awstest.New(t)
	key, secret := p.Root()
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "sa-east-1", "AWS_DEFAULT_REGION": "us-west-2"} {
		t.Setenv(name, value)
	}
	m := &mount{t: t, c: alone(t, "env"), name: "cloud", aws: p}
	m.node = m.c.Leader()
	m.node.MustDo("POST", "/v1/sys/mounts/cloud", object{"type": "cloud"})
	m.configure(object{"access_key": nil, "secret_key": nil, "region": nil})
	m.role("session", object{"credential_type": "session_token"})
	t.Run("credentials and region of the environment", func(t *testing.T) {
		m := *m
		m.t = t
		m.creds("session")
		if c := m.sole("GetSessionToken"); c.AccessKey != key || c.Region != "sa-east-1" {
			t.Errorf("signed by %s for %q", c.AccessKey, c.Region)
		}
	})
	t.Run("credentials of the payload come first", func(t *testing.T) {
		m := m.in(t)
		p.AddUser("other")
		other := p.AddKey("other")
		m.configure(object{"access_key": other.ID, "secret_key": other.Secret})
		m.creds("session")
		if c := m.sole("GetSessionToken"); c.AccessKey != other.ID || c.Region != "eu-west-1" {
			t.Errorf("signed by %s for %q", c.AccessKey, c.Region)
		}
	})
}

// TestCloudLease is about config/lease and what becomes of credentials in the end.
func TestCloudLease(t *testing.T) {
	t.Parallel()
	m := ready(t, alone(t, "lease"), "cloud")
	m.users("dev", nil)
	t.Run("defaults are those of the mount", func(t *testing.T) {
		m := m.in(t)
		wantData(t, m.read("config/lease"), object{"lease": "768h0m0s", "lease_max": "768h0m0s"})
		if c := m.creds("dev"); c.Seconds != 768*3600 {
			t.Errorf("lease_duration %d", c.Seconds)
		}
	})
	t.Run("lease and lease_max are required", func(t *testing.T) {
		m := m.in(t)
		m.refused("config/lease", object{"lease": "30m"}, "lease_max", "required")
		m.refused("config/lease", object{"lease_max": "30m"}, "lease", "required")
	})
	t.Run("durations have a suffix and h is the largest", func(t *testing.T) {
		m := m.in(t)
		for _, text := range []string{"1d", "2w", "3600", "soon", "-1h"} {
			m.refused("config/lease", object{"lease": text, "lease_max": "24h"}, `"lease"`)
			m.refused("config/lease", object{"lease": "1h", "lease_max": text}, `"lease_max"`)
		}
		m.refused("config/lease", object{"lease": "2h", "lease_max": "1h"}, `"lease"`)
	})
	t.Run("read answers what was set", func(t *testing.T) {
		m := m.in(t)
		wantStatus(t, "write", m.admin("POST", "config/lease", object{"lease": "30m", "lease_max": "12h"}), 204)
		wantData(t, m.read("config/lease"), object{"lease": "30m0s", "lease_max": "12h0m0s"})
	})
	t.Run("users have the lease and it is renewed up to lease_max", func(t *testing.T) {
		m := m.in(t)
		c := m.creds("dev")
		if c.Seconds != 1800 || !c.Renewable || !strings.HasPrefix(c.Lease, "cloud/creds/dev/") {
			t.Errorf("%s lasts %d s, renewable %v", c.Lease, c.Seconds, c.Renewable)
		}
		for increment, want := range map[string]int{"2h": 2 * 3600, "24h": 12 * 3600} {
			var renewed issued
			m.sys("POST", "leases/renew", object{"lease_id": c.Lease, "increment": increment}).Decode(t, &renewed)
			if renewed.Lease != c.Lease || renewed.Seconds > want || renewed.Seconds < want-300 {
				t.Errorf("renewed by %s: %s lasts %d s", increment, renewed.Lease, renewed.Seconds)
			}
		}
	})
	t.Run("revocation removes the user with all it has", func(t *testing.T) { revocation(t, m.in(t)) })
	t.Run("all of a prefix", func(t *testing.T) {
		m := m.in(t)
		m.users("many", nil)
		for range 5 {
			m.creds("many")
		}
		wantStatus(t, "revoke", m.sys("POST", "leases/revoke-prefix/cloud/creds/many", object{"sync": true}), 204)
		for _, name := range m.made() {
			if strings.Contains(name, "-many-") {
				t.Errorf("%s is left", name)
			}
		}
	})
	t.Run("a user that is gone already", func(t *testing.T) {
		m := m.in(t)
		c := m.creds("dev")
		m.aws.DropUser(m.user(c.Data.AccessKey).Name)
		wantStatus(t, "revoke", m.sys("POST", "leases/revoke", object{"lease_id": c.Lease, "sync": true}), 204)
	})
}

func revocation(t *testing.T, m *mount) {
	c := m.creds("dev")
	u := m.user(c.Data.AccessKey)
	if m.owner(c) != u.ARN {
		t.Fatal("the credentials do not work")
	}
	// What an administrator adds by hand would keep the user from being removed.
	m.aws.AddLoginProfile(u.Name)
	m.aws.AddMFADevice(u.Name, "")
	m.aws.AddCertificate(u.Name)
	m.aws.AddSSHKey(u.Name)
	m.aws.AddServiceCredential(u.Name)
	m.aws.AddKey(u.Name)
	wantStatus(t, "revoke", m.sys("POST", "leases/revoke", object{"lease_id": c.Lease, "sync": true}), 204)
	if _, there := m.aws.User(u.Name); there || m.owner(c) != "" {
		t.Error("the user is still there")
	}
}
