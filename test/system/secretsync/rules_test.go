package secretsync_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/cloud3sm/cloud3smtest"
	"github.com/coffer-project/coffer/engines/secretsync/repohost/repohosttest"
	"github.com/coffer-project/coffer/engines/secretsync/webhost/webhosttest"
)

// The rules of RULES.md, on real servers. This file has those of destinations.

// masked are the fields that reads do not show.
var masked = map[string][]string{
	"cloud1-sm": {"access_key_id", "secret_access_key"}, "cloud2-kv": {"client_secret"}, "cloud3-sm": {"credentials"},
	"repohost": {"access_token"}, "webhost-project": {"access_token"},
	"cloud1-ssm": {"access_key_id", "secret_access_key"}, "kubernetes": {"token"}, "webhook": {"signing_key", "headers"}, "gitlab": {"access_token"},
}

// required are the fields without which there is no destination.
var required = map[string][]string{
	"cloud1-sm": nil, "cloud2-kv": {"key_vault_uri", "client_id", "client_secret", "tenant_id"}, "cloud3-sm": {"credentials"},
	"repohost": {"access_token", "repository_owner", "repisitory_name"}, "webhost-project": {"access_token", "project_id", "deployment_environments"},
	"cloud1-ssm": nil, "kubernetes": {"api_server", "token", "namespace"}, "webhook": {"url", "signing_key"}, "gitlab": {"access_token", "project_id"},
}

func part(data object, name string) object {
	m, _ := data[name].(object)
	return m
}

// TestDestination is about destinations as such.
func TestDestination(t *testing.T) {
	t.Parallel()
	all := newSite(t, "dest")
	all.mount("kv")
	all.secret("kv", "a", "k", "v")
	secrets := all.secrets()
	silent := func(t *testing.T, what string, text []byte) {
		t.Helper()
		for _, secret := range secrets {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s tells a credential", what)
			}
		}
	}
	t.Run("there are none at first", func(t *testing.T) {
		s := all.in(t)
		s.rejected(404, "LIST", "sys/sync/destinations", nil)
		for _, kind := range kinds {
			s.rejected(404, "LIST", destinations+kind, nil)
			s.rejected(404, "GET", destinations+kind+"/none", nil)
		}
	})
	t.Run("create answers the record", func(t *testing.T) {
		s := all.in(t)
		for _, kind := range kinds {
			for _, verb := range []string{"POST", "PUT"} {
				a := s.do(verb, destinations+kind+"/created", s.fields(kind))
				silent(t, "the answer", a.Body)
				var out struct{ Data object }
				if a.Decode(t, &out); a.Status != 200 || out.Data["name"] != "created" || out.Data["type"] != kind || part(out.Data, "connection_details") == nil {
					t.Errorf("%s %s: status %d: %s", verb, kind, a.Status, a.Body)
				}
				read := s.must("GET", destinations+kind+"/created", nil)
				equal(t, kind+" as it was created and as it is read", out.Data, read)
			}
		}
	})
	t.Run("sensitive details are masked", func(t *testing.T) {
		s := all.in(t)
		for _, kind := range kinds {
			a := s.do("GET", s.dest(kind, "masked"), nil)
			silent(t, "a read", a.Body)
			var out struct{ Data object }
			a.Decode(t, &out)
			details := part(out.Data, "connection_details")
			for field, value := range s.fields(kind) {
				switch {
				case slices.Contains(masked[kind], field):
					equal(t, kind+" "+field, details[field], "*****")
				case field != "deployment_environments":
					equal(t, kind+" "+field, details[field], value)
				}
			}
		}
	})
	t.Run("the mask written back keeps what is stored", func(t *testing.T) {
		s := all.in(t)
		for _, kind := range kinds {
			d := s.dest(kind, "kept")
			details := part(s.must("GET", d, nil), "connection_details")
			s.must("POST", d, details)
			s.must("PATCH", d, details)
			if data := s.must("POST", d+"/verify", nil); data["ok"] != true {
				t.Errorf("%s is not let in any more: %v", kind, data)
			}
			s.must("DELETE", d, nil)
		}
	})
	t.Run("the mask is no credential of a new one", func(t *testing.T) {
		s := all.in(t)
		for kind, fields := range masked {
			change := object{}
			for _, field := range fields {
				change[field] = "*****"
			}
			s.rejected(400, "POST", destinations+kind+"/mask", s.fields(kind, change), fields[0], "give the credential itself")
		}
	})
	t.Run("required fields", func(t *testing.T) {
		s := all.in(t)
		for kind, fields := range required {
			for _, field := range fields {
				s.rejected(400, "POST", destinations+kind+"/missing", s.fields(kind, object{field: nil}), field)
				s.rejected(400, "POST", destinations+kind+"/missing", s.fields(kind, object{field: ""}), field)
			}
			s.rejected(404, "GET", destinations+kind+"/missing", nil)
		}
	})
	t.Run("what is not set is left out", func(t *testing.T) {
		s := all.in(t)
		data := s.must("POST", destinations+"cloud1-sm/bare", object{})
		for _, field := range []string{"access_key_id", "secret_access_key", "region"} {
			if value, ok := part(data, "connection_details")[field]; ok {
				t.Errorf("%s is %v", field, value)
			}
		}
		s.must("DELETE", destinations+"cloud1-sm/bare", nil)
	})
	t.Run("cloud is the public one by default", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud2-kv", "public")
		equal(t, "cloud", part(s.must("GET", d, nil), "connection_details")["cloud"], nil)
		d = s.dest("cloud2-kv", "public", object{"cloud": "cloud"})
		equal(t, "cloud", part(s.must("GET", d, nil), "connection_details")["cloud"], "cloud")
		s.must("DELETE", d, nil)
	})
	t.Run("credentials are what is in a file and not its name", func(t *testing.T) {
		s := all.in(t)
		for kind, field := range map[string]string{"cloud1-sm": "secret_access_key", "cloud1-ssm": "secret_access_key", "cloud2-kv": "client_secret", "cloud3-sm": "credentials", "repohost": "access_token", "webhost-project": "access_token", "kubernetes": "token", "webhook": "signing_key", "gitlab": "access_token"} {
			s.rejected(400, "POST", destinations+kind+"/file", s.fields(kind, object{field: "@/etc/passwd"}), field, "command")
		}
	})
	t.Run("credentials are those of a service account", func(t *testing.T) {
		s := all.in(t)
		for _, change := range []object{
			{"type": "external_account"}, {"type": "authorized_user"}, {"type": "impersonated_service_account"}, {"type": nil}, {"private_key": "x"},
			{"token_uri": "http://169.254.169.254/token"}, {"token_uri": "https://oauth2.googleapis.com.example.com/token"}, {"universe_domain": "example.com"},
		} {
			s.rejected(400, "POST", destinations+"cloud3-sm/odd", s.fields("cloud3-sm", object{"credentials": cloud3smtest.Credentials(change)}), "credentials")
		}
		s.rejected(400, "POST", destinations+"cloud3-sm/odd", object{"credentials": "{}"}, "credentials")
	})
	t.Run("key_vault_uri is a vault of the cloud", func(t *testing.T) {
		s := all.in(t)
		for _, uri := range []string{
			"http://example-vault.vault.azure.net", "https://127.0.0.1", "https://169.254.169.254/", "https://example.com", "https://example-vault.vault.azure.net.example.com",
			"https://example-vault.vault.azure.net@169.254.169.254", "https://example-vault.vault.azure.net:8443", "https://example-vault.vault.azure.net/x", "vault", "file:///etc/passwd",
			"https://localhost#.vault.azure.net", "https://[::1]", "https://a.b.vault.azure.net", "https://example-vault.vault.usgovcloudapi.net",
		} {
			s.rejected(400, "POST", destinations+"cloud2-kv/odd", s.fields("cloud2-kv", object{"key_vault_uri": uri}), "key_vault_uri")
		}
	})
	t.Run("repisitory_name is spelled so and repository_name is a synonym", func(t *testing.T) {
		s := all.in(t)
		both := func(data object, want string) {
			t.Helper()
			details := part(data, "connection_details")
			equal(t, "names", []any{details["repisitory_name"], details["repository_name"]}, []string{want, want})
		}
		d := s.dest("repohost", "spelling")
		both(s.must("GET", d, nil), "web")
		both(s.must("PATCH", d, object{"repository_name": "api"}), "api")
		both(s.must("PATCH", d, object{"repisitory_name": "web"}), "web")
		both(s.must("PATCH", d, object{"repisitory_name": "api", "repository_name": "api"}), "api")
		s.rejected(400, "POST", d, object{"repisitory_name": "api", "repository_name": "web"}, "repisitory_name", "repository_name")
		s.must("DELETE", d, nil)
		both(s.must("POST", d, s.fields("repohost", object{"repisitory_name": nil, "repository_name": "web"})), "web")
		s.must("DELETE", d, nil)
	})
	t.Run("deployment_environments in every form", func(t *testing.T) {
		s := all.in(t)
		for _, in := range []any{"preview,production", []string{"preview", "production"}, "preview, production"} {
			d := s.dest("webhost-project", "forms", object{"deployment_environments": in})
			equal(t, "environments", part(s.must("GET", d, nil), "connection_details")["deployment_environments"], []string{"preview", "production"})
		}
		for _, in := range []any{"staging", []string{"production", "x"}, []string{}, "Production;preview"} {
			s.rejected(400, "POST", destinations+"webhost-project/odd", s.fields("webhost-project", object{"deployment_environments": in}), "deployment_environments")
		}
		s.must("DELETE", destinations+"webhost-project/forms", nil)
	})
	t.Run("a patch changes what it gives", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("repohost", "merged", object{"secret_name_template": "A_{{ .SecretPath }}_{{ .SecretKey }}"})
		data := s.must("PATCH", d, object{"environment_name": "staging"})
		details := part(data, "connection_details")
		equal(t, "details", []any{details["access_token"], details["repository_owner"], details["environment_name"]}, []string{"*****", "acme", "staging"})
		equal(t, "template", part(data, "options")["secret_name_template"], "A_{{ .SecretPath }}_{{ .SecretKey }}")
		data = s.must("PATCH", d, object{"environment_name": nil, "secret_name_template": "", "granularity": "secret-path"})
		if _, ok := part(data, "connection_details")["environment_name"]; ok {
			t.Error("null does not clear a field")
		}
		equal(t, "options", []any{part(data, "options")["granularity_level"], part(data, "options")["secret_name_template"]}, []string{"secret-path", "vault/{{ .MountAccessor }}/{{ .SecretPath }}"})
		s.rejected(404, "PATCH", destinations+"repohost/none", object{"environment_name": "staging"})
		s.must("DELETE", d, nil)
	})
	t.Run("a write replaces all but the credentials", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("repohost", "replaced", object{
			"environment_name": "staging", "secret_name_template": "A_{{ .SecretKey }}", "allowed_ports": []int{443}, "disable_strict_networking": true,
		})
		data := s.must("GET", d, nil)
		equal(t, "ports", part(data, "options")["allowed_ports"], []int{443})
		data = s.must("POST", d, object{"repository_owner": "acme", "repository_name": "web"})
		equal(t, "details", part(data, "connection_details"), object{
			"access_token": "*****", "repository_owner": "acme", "repisitory_name": "web", "repository_name": "web",
		})
		defaults := object{
			"secret_name_template": "vault/{{ .MountAccessor }}/{{ .SecretPath }}/{{ .SecretKey }}", "allowed_ports": []int{}, "disable_strict_networking": false,
		}
		for field, want := range defaults {
			equal(t, field, part(data, "options")[field], want)
		}
		s.must("DELETE", d, nil)
	})
	t.Run("the default template of the other granularity counts as the default", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud2-kv", "turned")
		was := part(s.must("GET", d, nil), "options")["secret_name_template"]
		d = s.dest("cloud2-kv", "turned", object{"granularity": "secret-key", "secret_name_template": was})
		equal(t, "template", part(s.must("GET", d, nil), "options")["secret_name_template"], fmt.Sprint(was, "/{{ .SecretKey }}"))
		s.must("DELETE", d, nil)
	})
	t.Run("an update that is rejected changes nothing", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("webhost-project", "same")
		before := s.must("GET", d, nil)
		s.rejected(400, "POST", d, object{"deployment_environments": "x", "team_id": "team_9"})
		equal(t, "the record", s.must("GET", d, nil), before)
		s.must("DELETE", d, nil)
	})
	t.Run("options are shown with their defaults", func(t *testing.T) {
		s := all.in(t)
		for kind, granularity := range map[string]string{
			"cloud1-sm": "secret-path", "cloud2-kv": "secret-path", "cloud3-sm": "secret-path", "repohost": "secret-key", "webhost-project": "secret-key",
			"cloud1-ssm": "secret-path", "kubernetes": "secret-path", "webhook": "secret-path", "gitlab": "secret-key",
		} {
			d := s.dest(kind, "options")
			options := part(s.must("GET", d, nil), "options")
			equal(t, kind, options["granularity_level"], granularity)
			template := "vault/{{ .MountAccessor }}/{{ .SecretPath }}"
			if granularity == "secret-key" {
				template += "/{{ .SecretKey }}"
			}
			equal(t, kind, options["secret_name_template"], template)
			equal(t, kind, options["custom_tags"], object{})
			s.must("DELETE", d, nil)
		}
	})
	t.Run("granularity template and tags are checked", func(t *testing.T) {
		s := all.in(t)
		for field, value := range map[string]any{
			"granularity": "secret", "secret_name_template": "{{ .Nothing }}", "custom_tags": object{strings.Repeat("k", 200): "v"},
			"allowed_ipv4_addresses": "10.0.0.1", "allowed_ipv6_addresses": "x", "allowed_ports": "0",
		} {
			s.rejected(400, "POST", destinations+"cloud1-sm/odd", s.fields("cloud1-sm", object{field: value}), field)
		}
		s.rejected(400, "POST", destinations+"repohost/odd", s.fields("repohost", object{"custom_tags": object{"a": "b"}}), "custom_tags")
		s.rejected(400, "POST", destinations+"repohost/odd", s.fields("repohost", object{"secret_name_template": "same"}), "secret_name_template", "SecretKey")
	})
	t.Run("tags_to_remove", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud1-sm", "tags", object{"custom_tags": object{"a": "1", "b": "2"}})
		data := s.must("PATCH", d, object{"tags_to_remove": []string{"a"}, "custom_tags": object{"a": "1", "b": "2", "c": "3"}})
		equal(t, "tags", part(data, "options")["custom_tags"], object{"b": "2", "c": "3"})
		s.must("DELETE", d, nil)
	})
	t.Run("vendors' names of types are accepted", func(t *testing.T) {
		s := all.in(t)
		for kind, ours := range map[string]string{"aws-sm": "cloud1-sm", "aws-ssm": "cloud1-ssm", "azure-kv": "cloud2-kv", "gcp-sm": "cloud3-sm", "gh": "repohost", "vercel-project": "webhost-project"} {
			equal(t, "type", s.must("GET", destinations+kind+"/created", nil)["type"], kind)
			equal(t, "type", s.must("PATCH", destinations+kind+"/created", object{})["type"], kind)
			equal(t, "type", s.must("GET", destinations+ours+"/created", nil)["type"], ours)
			equal(t, "names", s.must("LIST", destinations+kind, nil)["keys"], s.must("LIST", destinations+ours, nil)["keys"])
		}
	})
	t.Run("other names of types are rejected", func(t *testing.T) {
		s := all.in(t)
		for _, kind := range []string{"in-mem", "AWS-SM"} {
			for _, verb := range []string{"POST", "GET", "DELETE"} {
				s.rejected(400, verb, destinations+kind+"/x", nil, strings.Join(slices.Sorted(slices.Values(kinds)), ", "))
			}
			s.rejected(400, "LIST", destinations+kind, nil, "the types are")
		}
	})
	t.Run("names of destinations", func(t *testing.T) {
		s := all.in(t)
		for _, name := range []string{"a%20b", "a:b", "%C3%A9", strings.Repeat("n", 129)} {
			s.rejected(400, "POST", destinations+"cloud1-sm/"+name, object{}, "name")
		}
		s.must("POST", destinations+"cloud1-sm/A-b_c.1", object{})
		s.must("DELETE", destinations+"cloud1-sm/A-b_c.1", nil)
	})
	t.Run("the list is grouped by type", func(t *testing.T) {
		s := all.in(t)
		for _, verb := range []string{"LIST sys/sync/destinations", "GET sys/sync/destinations?list=true", "LIST sys/sync/destinations/"} {
			method, path, _ := strings.Cut(verb, " ")
			data := s.must(method, path, nil)
			info := part(data, "key_info")
			var types []string
			for _, kind := range slices.Sorted(slices.Values(kinds)) {
				types = append(types, kind+"/")
			}
			equal(t, "keys", data["keys"], types)
			equal(t, "info", info["repohost/"], []string{"created", "masked"})
			equal(t, "total", data["total_destinations"], 2*len(kinds))
		}
		data := s.must("LIST", destinations+"cloud3-sm", nil)
		equal(t, "keys", []any{data["keys"], data["total_destinations"]}, []any{[]string{"created", "masked"}, 2})
	})
	t.Run("deleted if it exists", func(t *testing.T) {
		s := all.in(t)
		for _, kind := range kinds {
			for range 2 {
				if a := s.do("DELETE", destinations+kind+"/created", nil); a.Status != 204 {
					t.Errorf("status %d: %s", a.Status, a.Body)
				}
			}
			s.rejected(404, "GET", destinations+kind+"/created", nil)
		}
	})
	t.Run("rejected while it has associations", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("cloud1-sm", "busy")
		e := only(t, s.associate(d, "kv", "a"))
		s.rejected(400, "DELETE", d, nil, "associations (1)", "purge", "force_delete")
		s.has("cloud1-sm", e.Name, `{"k":"v"}`)
		s.rejected(400, "POST", d, object{"region": "eu-west-1"}, "another place")
		a := s.do("DELETE", d+"?purge=true", nil)
		if a.Status >= 300 || a.Status == 202 && !strings.Contains(string(a.Body), "purge_initiated_at") {
			t.Errorf("purge: status %d: %s", a.Status, a.Body)
		}
		s.has("cloud1-sm", e.Name, "")
		s.vanishes(d)
	})
	t.Run("purge that fails says why", func(t *testing.T) {
		s := all.in(t)
		d := s.dest("repohost", "stuck", object{"granularity": "secret-path", "repisitory_name": "api"})
		only(t, s.associate(d, "kv", "a"))
		s.must("PATCH", d, object{"access_token": repohosttest.ReadOnly})
		if a := s.do("DELETE", d, object{"purge": true}); a.Status != 202 {
			t.Fatalf("status %d: %s", a.Status, a.Body)
		}
		s.eventually(d, func(data object) error {
			if text, _ := data["purge_error"].(string); text == "" || data["purge_initiated_at"] == nil {
				return fmt.Errorf("the record is %v", data)
			}
			return nil
		})
		s.rejected(400, "POST", d+"/associations/set", object{"mount": "kv", "secret_name": "a"}, "purged")
		s.must("DELETE", d+"?force_delete=true", nil)
		s.rejected(404, "GET", d, nil)
		if _, ok := s.repo.Get(repohosttest.Repository("acme", "api"), "VAULT_"+strings.ToUpper(s.accessor("kv"))+"_A"); !ok {
			t.Error("force_delete has removed what was synced")
		}
	})
	t.Run("accepted without contacting the place", func(t *testing.T) {
		s := all.in(t)
		s.web.Calls()
		d := s.dest("webhost-project", "unasked", object{"access_token": webhosttest.ReadOnly, "project_id": "prj_none"})
		s.must("GET", d, nil)
		if calls := s.web.Calls(); len(calls) > 0 {
			t.Errorf("it was asked %q", calls)
		}
		s.must("DELETE", d, nil)
	})
	t.Run("verify", func(t *testing.T) {
		s := all.in(t)
		for _, kind := range kinds {
			data := s.must("POST", destinations+kind+"/masked/verify", nil)
			if checks, _ := data["checks"].([]any); data["ok"] != true || len(checks) == 0 {
				t.Errorf("%s: %v", kind, data)
			}
		}
		wrong := map[string]object{
			"cloud1-sm": {"secret_access_key": strings.Repeat("x", 40)}, "cloud2-kv": {"client_secret": "wrong-one"},
			"repohost": {"repisitory_name": "none"}, "webhost-project": {"project_id": "prj_none"},
		}
		for kind, at := range s.plain {
			wrong[kind] = at.wrong
		}
		for kind, change := range wrong {
			d := s.dest(kind, "wrong", change)
			if data := s.must("POST", d+"/verify", nil); data["ok"] != false {
				t.Errorf("%s with %v: %v", kind, keysOf(change), data)
			}
			s.must("DELETE", d, nil)
		}
		s.rejected(404, "POST", destinations+"repohost/none/verify", nil)
	})
	t.Run("the feature is active from the start", func(t *testing.T) {
		s := all.in(t).as("")
		equal(t, "activated", s.must("GET", "sys/activation-flags", nil)["activated"], []string{"secrets-sync"})
		s = all.in(t)
		equal(t, "activated", s.must("PUT", "sys/activation-flags/secrets-sync/activate", nil)["activated"], []string{"secrets-sync"})
	})
}
