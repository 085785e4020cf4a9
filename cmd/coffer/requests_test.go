package main

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/local"
)

const (
	kv2Mount = `200 {"data":{"path":"secret/","type":"kv","options":{"version":"2"}}}`
	kv1Mount = `200 {"data":{"path":"old/","type":"kv","options":{"version":"1"}}}`
	version7 = `200 {"data":{"version":7,"created_time":"2026-01-02T03:04:05Z","deletion_time":"","destroyed":false,"custom_metadata":null}}`
	secret7  = `200 {"request_id":"r","data":{"data":{"user":"ada","n":9007199254740993},"metadata":{"version":7,"deletion_time":"","destroyed":false}}}`
	deleted7 = `404 {"data":{"data":null,"metadata":{"version":7,"deletion_time":"2026-01-02T03:04:05Z","destroyed":false}}}`
	created  = `200 {"auth":{"client_token":"hvs.new","accessor":"acc","policies":["app"],"token_policies":["app"],"lease_duration":3600,"renewable":true}}`
)

const (
	wrapped    = `200 {"wrap_info":{"token":"hvs.wrap","accessor":"wa","ttl":300,"creation_time":"2026-01-02T03:04:05Z","creation_path":"sys/wrapping/wrap"}}`
	entityByID = "identity/entity/id/53aef9ea-c24c-4b57-bef6-376d892f02a4"
)

const autopilotAPI = "sys/storage/raft/autopilot/"

var answers = map[string]string{
	"GET sys/internal/ui/mounts/secret":                kv2Mount,
	"GET sys/internal/ui/mounts/secret/app":            kv2Mount,
	"GET sys/internal/ui/mounts/secret/gone":           kv2Mount,
	"GET sys/internal/ui/mounts/secret/none":           kv2Mount,
	"GET sys/internal/ui/mounts/old/app":               kv1Mount,
	"GET sys/internal/ui/mounts/denied/app":            `403 {"errors":["permission denied"]}`,
	"GET secret/data/app":                              secret7,
	"GET secret/data/gone":                             deleted7,
	"PUT secret/data/app":                              version7,
	"PATCH secret/data/app":                            `405 {"errors":["unsupported operation"]}`,
	"GET secret/metadata/app":                          `200 {"data":{"current_version":7,"max_versions":0,"versions":{"7":{"destroyed":false},"10":{"destroyed":true}}}}`,
	"GET secret/metadata":                              `200 {"data":{"keys":["app","teams/"]}}`,
	"POST secret/delete/app":                           "204",
	"DELETE secret/data/app":                           "204",
	"DELETE secret/metadata/app":                       "204",
	"PUT secret/undelete/app":                          "204",
	"PUT secret/destroy/app":                           "204",
	"PUT secret/metadata/app":                          "204",
	"PATCH secret/metadata/app":                        "204",
	"GET old/app":                                      `200 {"data":{"user":"bob"},"lease_duration":2764800}`,
	"PUT old/app":                                      "204",
	"POST auth/token/create":                           created,
	"POST auth/token/create-orphan":                    created,
	"POST auth/token/create/ci":                        created,
	"GET auth/token/lookup-self":                       `200 {"data":{"id":"t","ttl":3600,"policies":["root"],"renewable":false,"accessor":"acc","meta":null}}`,
	"POST auth/token/lookup":                           `200 {"data":{"id":"x","ttl":90}}`,
	"POST auth/token/lookup-accessor":                  `200 {"data":{"id":"","accessor":"x"}}`,
	"PUT auth/token/renew-self":                        created,
	"POST auth/token/revoke":                           "204",
	"POST auth/token/revoke-self":                      "204",
	"POST auth/token/revoke-accessor":                  "204",
	"POST auth/token/revoke-orphan":                    "204",
	"POST sys/capabilities-self":                       `200 {"data":{"capabilities":["read","list"],"secret/data/app":["read","list"]}}`,
	"POST sys/capabilities":                            `200 {"data":{"capabilities":["deny"]}}`,
	"PUT sys/rotate":                                   "204",
	"GET sys/key-status":                               `200 {"data":{"term":3,"install_time":"2026-01-02T03:04:05Z","encryptions":12}}`,
	"PUT sys/seal":                                     "204",
	"PUT sys/step-down":                                "204",
	"PUT sys/policies/acl/app":                         "204",
	"GET sys/policies/acl/app":                         `200 {"data":{"name":"app","policy":"path \"a\" {}\n"}}`,
	"GET sys/policies/acl":                             `200 {"data":{"keys":["default","root"]}}`,
	"DELETE sys/policies/acl/app":                      "204",
	"POST sys/mounts/teams":                            "204",
	"POST sys/mounts/kv/tune":                          "204",
	"DELETE sys/mounts/kv":                             "204",
	"GET sys/mounts":                                   `200 {"data":{"kv/":{"type":"kv","accessor":"kv_1","description":"","options":null,"config":{"default_lease_ttl":0,"max_lease_ttl":86400}}}}`,
	"GET sys/auth":                                     `200 {"data":{"token/":{"type":"token","accessor":"auth_1","description":"tokens"}}}`,
	"POST sys/auth/userpass":                           "204",
	"POST sys/remount":                                 `200 {"data":{"migration_id":"m1"}}`,
	"GET sys/remount/status/m1":                        `200 {"data":{"migration_id":"m1","migration_info":{"status":"success"}}}`,
	"PUT sys/audit/file":                               "204",
	"DELETE sys/audit/file":                            "204",
	"GET sys/audit":                                    `200 {"data":{"file/":{"type":"file","description":"","options":{"file_path":"/a","mode":"0600"}}}}`,
	"PUT sys/leases/lookup":                            `200 {"data":{"id":"a/b","ttl":60}}`,
	"PUT sys/leases/renew":                             `200 {"lease_id":"a/b","lease_duration":60,"renewable":true}`,
	"PUT sys/leases/revoke":                            "204",
	"PUT sys/leases/revoke-prefix/a":                   "204",
	"PUT sys/leases/revoke-force/a":                    "204",
	"PUT sys/namespaces/team-a":                        `200 {"data":{"id":"n1","path":"team-a/"}}`,
	"DELETE sys/namespaces/team-a":                     `200 {"data":{"status":"in-progress"}}`,
	"DELETE sys/namespaces/none":                       `200 {"warnings":["there is no such namespace"]}`,
	"PATCH sys/namespaces/team-a":                      `200 {"data":{"id":"n1"}}`,
	"PUT sys/namespaces/api-lock/lock/a/b":             `200 {"data":{"unlock_key":"k1"}}`,
	"PUT sys/namespaces/api-lock/unlock":               "204",
	"PUT sys/namespaces/api-lock/unlock/a":             "204",
	"GET sys/namespaces":                               `200 {"data":{"keys":["team-a/"]}}`,
	"PUT auth/token/renew":                             `403 {"errors":["bad token"]}`,
	"PUT sys/wrapping/wrap":                            wrapped,
	"PUT sys/wrapping/rewrap":                          wrapped,
	"PUT sys/wrapping/lookup":                          `200 {"data":{"creation_path":"sys/wrapping/wrap","creation_ttl":300}}`,
	"GET sys/leases/lookup":                            `200 {"data":{"keys":["cloud/"]}}`,
	"GET sys/leases/count":                             `200 {"data":{"lease_count":3,"counts":{"cloud_1":3}}}`,
	"GET sys/leases":                                   `200 {"data":{"lease_count":1,"leases":[{"lease_id":"cloud/creds/a/1","mount_id":"cloud_1","error":"no such user"}]}}`,
	"PUT sys/leases/tidy":                              `202 {"warnings":["Tidy operation successfully started."]}`,
	"POST sys/audit-search/file":                       `200 {"data":{"complete":false,"oldest":"2026-05-01T00:00:00Z","records":[{"time":"2026-05-01T12:00:00Z","display_name":"ana","operation":"read","namespace":"team/","path":"kv/data/a","outcome":"denied","error":"permission denied"}]}}`,
	"PUT sys/audit-hash/file":                          `200 {"data":{"hash":"hmac-sha256:00"}}`,
	"PUT sys/policies/password/db":                     "204",
	"DELETE sys/policies/password/db":                  "204",
	"GET sys/policies/password/db":                     `200 {"data":{"policy":"length = 20\n"}}`,
	"GET sys/policies/password":                        `200 {"data":{"keys":["db"]}}`,
	"GET sys/policies/password/db/generate":            `200 {"data":{"password":"s3same"}}`,
	"GET sys/quotas/rate-limit":                        `200 {"data":{"keys":["shop"]}}`,
	"GET sys/quotas/rate-limit/shop":                   `200 {"data":{"name":"shop","rate":100,"interval":1}}`,
	"POST sys/quotas/rate-limit/shop":                  "204",
	"POST sys/quotas/config":                           "204",
	"GET sys/quotas/config":                            `200 {"data":{"enable_rate_limit_response_headers":false}}`,
	"DELETE sys/quotas/rate-limit/shop":                "204",
	"GET identity/entity/id":                           `200 {"data":{"keys":["e1","e2"],"key_info":{"e1":{"name":"bob","aliases":[]},"e2":{"name":"ada","aliases":[{"name":"a","mount_path":"auth/userpass/"}]}}}}`,
	"GET identity/entity/name/ada":                     `200 {"data":{"id":"e2","name":"ada"}}`,
	"GET " + entityByID:                                `200 {"data":{"id":"e3","name":"eve"}}`,
	"POST sys/auth/userpass/tune":                      "204",
	"GET sys/mounts/auth/userpass":                     `200 {"data":{"accessor":"auth_userpass_1"}}`,
	"POST sys/locked-users/auth_userpass_1/unlock/ada": "204",
	"GET sys/locked-users":                             `200 {"data":{"total":2,"by_namespace":[{"namespace_path":"","mount_accessors":[{"mount_path":"auth/userpass/","locks":[{"alias_identifier":"ada","everywhere":false,"sources":["192.0.2.1","192.0.2.2"],"locked_until":"2030-01-01T00:00:00Z"},{"alias_identifier":"bob","everywhere":true,"sources":[],"locked_until":"2030-01-01T00:00:00Z"}]}]}]}}`,
	"GET auth/staff":                                   `200 {"help":"The staff.","data":{"help":"The staff."}}`,
	"GET any/text":                                     "200 # not JSON",
	"GET any/quota":                                    `429 {"errors":["rate limit quota exceeded"]}`,
	"GET any/nowhere":                                  `404 {"errors":["namespace not found"]}`,
	"GET any/locked":                                   `503 {"errors":["API access to this namespace has been locked by an administrator"]}`,
	"PUT sys/wrapping/unwrap":                          `200 {"data":{"user":"ada"}}`,
	"PUT auth/userpass/login/ada":                      created,
	"PUT auth/approle/login":                           created,
	"POST sys/storage/raft/rotate-ca":                  "204",
	"GET sys/storage/raft/certificates":                `200 {"data":{"ca_expiration":"2027-01-01T00:00:00Z","generation":3,"nodes":{"n1":{"expiration":"2026-02-01T00:00:00Z","current_ca":true}}}}`,
	"GET sys/storage/raft/configuration":               `200 {"data":{"config":{"servers":[{"node_id":"n1","address":"127.0.0.1:8201","leader":true,"voter":true},{"node_id":"n2","address":"127.0.0.1:8202","leader":false,"voter":false}]}}}`,
	"POST sys/storage/raft/remove-peer":                "204",
	"POST sys/storage/raft/promote":                    "204",
	"POST sys/storage/raft/demote":                     "204",
	"POST sys/storage/raft/join":                       `200 {"joined":true}`,
	"POST " + autopilotAPI + "configuration":           "204",
	"GET " + autopilotAPI + "state":                    `200 {"data":{"healthy":true,"failure_tolerance":1,"leader":"n1","voters":["n1"],"servers":{"n1":{"address":"a","status":"leader","healthy":true,"last_contact":"0s","last_term":2,"last_index":9,"behind":"1.5s","disk":"low"}}}}`,
	"GET sys/ha-status":                                `200 {"nodes":[{"hostname":"h","api_address":"http://a","cluster_address":"https://c","active_node":true,"last_echo":null,"version":"1","disk":"full"}]}`,
	"GET sys/seal-status":                              `200 {"type":"shamir","initialized":true,"sealed":false,"t":1,"n":1,"version":"1.21.0","coffer_version":"0.1.0","storage_type":"raft"}`,
	"GET sys/leader":                                   `200 {"ha_enabled":true,"is_self":true,"leader_address":"http://a","raft_applied_index":9}`,
	"GET sys/health":                                   `200 {"standby":true,"disk":"failing","ha_connection_healthy":false,"standby_behind_ms":12500,"standby_error":"it lags"}`,
	"PUT sys/unseal":                                   `200 {"type":"shamir","initialized":true,"sealed":true,"t":3,"n":5,"progress":1,"version":"1"}`,
	"PUT sys/init":                                     `200 {"keys":["6162"],"keys_base64":["YWI="],"root_token":"hvs.root"}`,
	"GET any/thing":                                    `200 {"data":{"a":"b","list":[1,"x"],"empty":"","none":null,"ttl":5400}}`,
	"PUT any/thing":                                    "204",
	"PUT any/answers":                                  `200 {"data":{"made":"yes"},"warnings":["take care"]}`,
	"PATCH any/thing":                                  "204",
	"DELETE any/thing":                                 "204",
	"GET any/wrapped":                                  `200 {"wrap_info":{"token":"hvs.wrap","accessor":"wa","ttl":300,"creation_time":"2026-01-02T03:04:05Z","creation_path":"any/wrapped"}}`,
	"GET any/sealed":                                   `503 {"errors":["Vault is sealed"]}`,
	"GET any/denied":                                   `403 {"errors":["permission denied"]}`,
	"GET any/unrouted":                                 `404 {"errors":["no handler for route \"any/unrouted\""]}`,
}

// TestRequests checks for each command what it sends after the look-ups common to all, what it says and how it exits.
func TestRequests(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data.json")
	if err := os.WriteFile(file, []byte(`{"user":"ada","n":9007199254740993}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		args   string // split at spaces
		stdin  string
		last   string // the last request
		stdout string // a part of it
		stderr string // a part of it
		status int
	}{
		{args: "kv get secret/app", last: "GET secret/data/app", stdout: "user    ada\n"},
		{args: "kv get -mount=secret app", last: "GET secret/data/app", stdout: "== Secret Path ==\nsecret/data/app\n"},
		{args: "kv get -mount secret -version 3 app", last: "GET secret/data/app?version=3", stdout: "version          7"},
		{args: "kv get --field=user secret/app", last: "GET secret/data/app", stdout: "ada"},
		{args: "kv get secret/app -format=json", last: "GET secret/data/app", stdout: `"n": 9007199254740993`},
		{args: "kv get -format=yaml secret/app", last: "GET secret/data/app", stdout: "\"n\": 9007199254740993\n"},
		{args: "kv get -field=nope secret/app", last: "GET secret/data/app", stderr: `no field "nope"`, status: 1},
		{args: "kv get secret/gone", last: "GET secret/data/gone", stdout: "deletion_time    2026", stderr: "kv undelete -versions=7 secret/gone", status: 2},
		{args: "kv get secret/none", last: "GET secret/data/none", stderr: "no value found at secret/data/none", status: 2},
		{args: "kv get denied/app", last: "GET sys/internal/ui/mounts/denied/app", stderr: "Nothing is mounted at", status: 2},
		{args: "kv get old/app", last: "GET old/app", stdout: "refresh_interval    768h\nuser                bob\n"},
		{args: "kv get -version=2 old/app", last: "GET sys/internal/ui/mounts/old/app", stderr: "keeps no versions", status: 1},
		{args: "kv put secret/app user=bob", last: `PUT secret/data/app {"data":{"user":"bob"},"options":{}}`, stdout: "version            7"},
		{args: "kv put -cas=0 secret/app user=bob", last: `PUT secret/data/app {"data":{"user":"bob"},"options":{"cas":0}}`},
		{args: "kv put secret/app p=-", stdin: "a\nb\n", last: `PUT secret/data/app {"data":{"p":"a\nb\n"},"options":{}}`},
		{args: "kv put secret/app @" + file, last: `PUT secret/data/app {"data":{"n":9007199254740993,"user":"ada"},"options":{}}`},
		{args: "kv put secret/app - x=1", stdin: `{"a":{"b":[true,null]}}`, last: `PUT secret/data/app {"data":{"a":{"b":[true,null]},"x":"1"},"options":{}}`},
		{args: "kv put old/app user=bob", last: `PUT old/app {"user":"bob"}`, stdout: "Success! Data written to: old/app\n"},
		{args: "kv put -cas=1 old/app user=bob", last: "GET sys/internal/ui/mounts/old/app", stderr: "-cas needs version 2", status: 1},
		{args: "kv put secret/app", stderr: "no data to write", status: 1},
		{args: "kv put secret/app hunter2", stderr: `begins with "hun…"`, status: 1},
		{args: "kv patch secret/app user=bob", last: `PUT secret/data/app {"data":{"n":9007199254740993,"user":"bob"},"options":{"cas":7}}`},
		{args: "kv patch -method=patch secret/app user=bob", last: `PATCH secret/data/app {"data":{"user":"bob"},"options":{}}`, stderr: "unsupported operation", status: 2},
		{args: "kv patch -method=rw secret/app -", stdin: `{"user":null}`, last: `PUT secret/data/app {"data":{"n":9007199254740993},"options":{"cas":7}}`},
		{args: "kv patch old/app a=b", last: "GET sys/internal/ui/mounts/old/app", stderr: "needs version 2", status: 1},
		{args: "kv delete secret/app", last: "DELETE secret/data/app", stdout: "Success! Data deleted (if it existed) at: secret/data/app\n"},
		{args: "kv delete -versions=2,3 -versions=5 secret/app", last: `POST secret/delete/app {"versions":[2,3,5]}`},
		{args: "kv delete -versions=x secret/app", stderr: "-versions takes numbers", status: 1},
		{args: "kv undelete -versions=2 secret/app", last: `PUT secret/undelete/app {"versions":[2]}`},
		{args: "kv destroy -versions=2 secret/app", last: `PUT secret/destroy/app {"versions":[2]}`},
		{args: "kv destroy secret/app", stderr: "-versions says which", status: 1},
		{args: "kv list secret/", last: "GET secret/metadata?list=true", stdout: "Keys\n----\napp\nteams/\n"},
		{args: "kv list -mount=secret -format=json", last: "GET secret/metadata?list=true", stdout: "[\n  \"app\",\n  \"teams/\"\n]\n"},
		{args: "kv rollback -version=2 secret/app", last: `PUT secret/data/app {"data":{"n":9007199254740993,"user":"ada"},"options":{"cas":7}}`},
		{args: "kv rollback secret/app", stderr: "-version says", status: 1},
		{args: "kv metadata get secret/app", last: "GET secret/metadata/app", stdout: "== Version 10 =="},
		{args: "kv metadata put -max-versions=5 -cas-required=false secret/app", last: `PUT secret/metadata/app {"cas_required":false,"max_versions":5}`},
		{args: "kv metadata patch -custom-metadata=a=b,c -remove-custom-metadata=d secret/app", last: `PATCH secret/metadata/app {"custom_metadata":{"a":"b,c","d":null}}`},
		{args: "kv metadata delete secret/app", last: "DELETE secret/metadata/app"},
		{args: "kv enable-versioning kv/", last: `POST sys/mounts/kv/tune {"options":{"version":"2"}}`},

		{args: "read any/thing", last: "GET any/thing", stdout: "Key      Value\n---      -----\na        b\nempty    n/a\nlist     [1 x]\nnone     n/a\nttl      1h30m\n"},
		{args: "read /any/thing/ ttl=1h", last: "GET any/thing?ttl=1h"},
		{args: "read -field=list any/thing", last: "GET any/thing", stdout: `[1,"x"]`},
		{args: "read -field=ttl any/thing", last: "GET any/thing", stdout: `5400`},
		{args: "read nothing/here", last: "GET nothing/here", stderr: "no value found at nothing/here", status: 2},
		{args: "read any/sealed", last: "GET any/sealed", stderr: "coffer operator unseal", status: 2},
		{args: "read any/denied", last: "GET any/denied", stderr: "coffer token capabilities any/denied", status: 2},
		{args: "read any/unrouted", last: "GET any/unrouted", stderr: "coffer secrets list", status: 2},
		{args: "read -wrap-ttl=5m any/wrapped", last: "GET any/wrapped", stdout: "wrapping_token_ttl              5m\n"},
		{args: "read -field=wrapping_token -wrap-ttl=5m any/wrapped", last: "GET any/wrapped", stdout: "hvs.wrap"},
		{args: "read -format=xml any/thing", last: "GET any/thing", stderr: `format "xml" is unknown`, status: 1},
		{args: "write any/thing a=1 a=2 b=", last: `PUT any/thing {"a":["1","2"],"b":""}`, stdout: "Success! Data written to: any/thing\n"},
		{args: "write -f any/thing", last: "PUT any/thing {}"},
		{args: "write any/thing", stderr: "-force writes without", status: 1},
		{args: "write any/answers a=b", last: `PUT any/answers {"a":"b"}`, stdout: "made    yes\n", stderr: "Warning: take care"},
		{args: "write -format=json any/thing a=b", last: `PUT any/thing {"a":"b"}`},
		{args: "patch any/thing -", stdin: `{"a":null}`, last: `PATCH any/thing {"a":null}`},
		{args: "list secret/metadata", last: "GET secret/metadata?list=true", stdout: "Keys\n----\napp\n"},
		{args: "list nothing/here", last: "GET nothing/here?list=true", stderr: "no value found", status: 2},
		{args: "delete any/thing", last: "DELETE any/thing", stdout: "Success! Data deleted (if it existed) at: any/thing\n"},
		{args: "unwrap hvs.wrap", last: "PUT sys/wrapping/unwrap", stdout: "user    ada\n"},

		{args: "token create -policy=a -policy=b,c -ttl=1h -metadata=k=v -use-limit=2 -renewable=false", last: `POST auth/token/create {"meta":{"k":"v"},"num_uses":2,"policies":["a","b,c"],"renewable":false,"ttl":"1h"}`, stdout: "token_duration       1h\n"},
		{args: "token create -orphan -field=token", last: "POST auth/token/create-orphan {}", stdout: "hvs.new"},
		{args: "token create -role=ci -orphan", last: `POST auth/token/create/ci {"no_parent":true}`},
		{args: "token lookup", last: "GET auth/token/lookup-self", stdout: "ttl          1h\n"},
		{args: "token lookup x", last: `POST auth/token/lookup {"token":"x"}`, stdout: "ttl    1m30s\n"},
		{args: "token lookup -", stdin: "x\n", last: `POST auth/token/lookup {"token":"x"}`},
		{args: "token lookup -accessor x", last: `POST auth/token/lookup-accessor {"accessor":"x"}`},
		{args: "token renew -increment=30m", last: `PUT auth/token/renew-self {"increment":"30m"}`},
		{args: "token revoke x", last: `POST auth/token/revoke {"token":"x"}`},
		{args: "token revoke -self", last: "POST auth/token/revoke-self"},
		{args: "token revoke -accessor x", last: `POST auth/token/revoke-accessor {"accessor":"x"}`},
		{args: "token revoke -mode=orphan x", last: `POST auth/token/revoke-orphan {"token":"x"}`},
		{args: "token revoke -mode=path a", last: "PUT sys/leases/revoke-prefix/a"},
		{args: "token revoke", stderr: "name the token", status: 1},
		{args: "token capabilities secret/data/app", last: `POST sys/capabilities-self {"paths":["secret/data/app"]}`, stdout: "read, list\n"},
		{args: "token capabilities -format=json x a/", last: `POST sys/capabilities {"paths":["a/"],"token":"x"}`, stdout: "[\n  \"deny\"\n]\n"},

		{args: "policy write app -", stdin: "path \"a\" {}", last: `PUT sys/policies/acl/app {"policy":"path \"a\" {}"}`, stdout: "Success! Uploaded policy: app\n"},
		{args: "policy read app", last: "GET sys/policies/acl/app", stdout: "path \"a\" {}\n"},
		{args: "policy read none", last: "GET sys/policies/acl/none", stderr: `no policy "none"`, status: 2},
		{args: "policy list", last: "GET sys/policies/acl?list=true", stdout: "default\nroot\n"},
		{args: "policy test -policy=default -policy=app -file=- a/", stdin: "path \"a\" {}", last: `POST sys/capabilities {"paths":["a/"],"policies":["default","app"],"policy":"path \"a\" {}"}`, stdout: "deny\n"},
		{args: "policy test a", stderr: "give -policy, -file or both", status: 1},
		{args: "policy delete app", last: "DELETE sys/policies/acl/app"},

		{args: "secrets enable -path=teams -version=2 -options=a=b -max-lease-ttl=24h -seal-wrap kv", last: `POST sys/mounts/teams {"config":{"max_lease_ttl":"24h"},"description":"","local":false,"options":{"a":"b","version":"2"},"type":"kv"}`, stdout: "at: teams/\n"},
		{args: "secrets disable kv/", last: "DELETE sys/mounts/kv"},
		{args: "secrets list", last: "GET sys/mounts", stdout: "Path    Type    Accessor    Description\n----    ----    --------    -----------\nkv/     kv      kv_1        n/a\n"},
		{args: "secrets list -detailed", last: "GET sys/mounts", stdout: "system         24h"},
		{args: "secrets tune -description=x -default-lease-ttl=1h kv", last: `POST sys/mounts/kv/tune {"default_lease_ttl":"1h","description":"x"}`},
		{args: "secrets tune kv", stderr: "no setting was given", status: 1},
		{args: "secrets move -detach a b", last: `POST sys/remount {"from":"a","to":"b"}`, stdout: "sys/remount/status/m1"},
		{args: "secrets move a b", last: "GET sys/remount/status/m1", stdout: "Success! Moved a/ to: b/\n"},
		{args: "auth enable userpass", last: `POST sys/auth/userpass {"config":{},"description":"","local":false,"options":{},"type":"userpass"}`, stdout: "at: auth/userpass/\n"},
		{args: "auth move -detach a auth/b", last: `POST sys/remount {"from":"auth/a","to":"auth/b"}`},
		{args: "auth move -detach n/auth/a b", last: `POST sys/remount {"from":"n/auth/a","to":"auth/b"}`},
		{args: "auth list", last: "GET sys/auth", stdout: "token/    token    auth_1      tokens\n"},

		{args: "auth tune -user-lockout-threshold=9 -user-lockout-disable=false userpass", last: `POST sys/auth/userpass/tune {"user_lockout_config":{"lockout_disable":false,"lockout_threshold":9}}`},
		{args: "auth locked-users", last: "GET sys/locked-users", stdout: "auth/userpass/    ada     192.0.2.1, 192.0.2.2    2030-01-01T00:00:00Z\nauth/userpass/    bob     all "},
		{args: "auth unlock auth/userpass ada", last: `POST sys/locked-users/auth_userpass_1/unlock/ada {}`, stdout: "User ada of auth/userpass/ is not locked out"},

		{args: "audit enable file file_path=/a", last: `PUT sys/audit/file {"description":"","local":false,"options":{"file_path":"/a"},"type":"file"}`},
		{args: "audit list -detailed", last: "GET sys/audit", stdout: "file_path=/a mode=0600"},
		{args: "audit disable file", last: "DELETE sys/audit/file"},
		{args: "lease lookup a/b", last: `PUT sys/leases/lookup {"lease_id":"a/b"}`, stdout: "ttl    1m\n"},
		{args: "lease renew -i=5m a/b", last: `PUT sys/leases/renew {"increment":"5m","lease_id":"a/b"}`, stdout: "lease_duration     1m\n"},
		{args: "lease revoke -sync a/b", last: `PUT sys/leases/revoke {"lease_id":"a/b","sync":true}`},
		{args: "lease revoke -prefix a", last: `PUT sys/leases/revoke-prefix/a {"sync":false}`},
		{args: "lease revoke -prefix -force a", last: "PUT sys/leases/revoke-force/a"},
		{args: "lease revoke -force a", stderr: "-force needs -prefix", status: 1},
		{args: "namespace create -custom-metadata=a=b team-a", last: `PUT sys/namespaces/team-a {"custom_metadata":{"a":"b"}}`, stdout: "id      n1\n"},
		{args: "namespace list", last: "GET sys/namespaces?list=true", stdout: "team-a/\n"},
		{args: "namespace lookup none", last: "GET sys/namespaces/none", stderr: "no namespace none/", status: 2},
		{args: "namespace read team-a", last: "GET sys/namespaces/team-a", stderr: "no namespace team-a/", status: 2},
		{args: "namespace delete -detach team-a/", last: "DELETE sys/namespaces/team-a", stdout: "is being removed"},
		{args: "namespace delete team-a/", last: "GET sys/namespaces/team-a", stdout: "Success! Deleted"},
		{args: "namespace delete none", last: "DELETE sys/namespaces/none", stdout: "Success! Deleted", stderr: "no such namespace"},
		{args: "namespace patch -custom-metadata=a=b -remove-custom-metadata=c team-a", last: `PATCH sys/namespaces/team-a {"custom_metadata":{"a":"b","c":null}}`, stdout: "id     n1\n"},
		{args: "namespace patch team-a", stderr: "no change was given", status: 1},
		{args: "namespace lock -field=unlock_key a/b/", last: "PUT sys/namespaces/api-lock/lock/a/b", stdout: "k1"},
		{args: "namespace unlock -key=-", stdin: "k1\n", last: `PUT sys/namespaces/api-lock/unlock {"unlock_key":"k1"}`, stdout: "unlocked"},
		{args: "namespace unlock -no-key a", last: "PUT sys/namespaces/api-lock/unlock/a {}"},
		{args: "namespace unlock a", stderr: "stdin is no terminal", status: 1},
		{args: "namespace unlock -key=k1 a", stderr: "stays in the shell's history", status: 1},

		{args: "kv get -output-curl-string secret/app", last: "GET sys/internal/ui/mounts/secret/app", stdout: `curl -H "X-Vault-Token: $(coffer print token)" -H 'X-Vault-Request: true' 'http`},
		{args: "write -output-curl-string any/thing a=it's", stdout: `-X PUT -H "X-Vault-Token: $(coffer print token)" -H 'X-Vault-Request: true' -d '{"a":"it'\''s"}' '`},
		{args: "unwrap -output-curl-string hvs.wrap", stdout: `-H 'X-Vault-Token: hvs.wrap'`},
		{args: "list -output-curl-string secret/metadata", stdout: `/v1/secret/metadata?list=true'`},
		{args: "login -output-curl-string -method=approle -mfa=phone:7 role_id=a", stdout: `curl -X PUT -H 'X-Vault-Request: true' -H 'X-Vault-MFA: phone:7'`},
		{args: "operator raft snapshot save -output-curl-string x", stderr: "is not for coffer operator raft snapshot save", status: 1},
		{args: "wrap a=b", last: `PUT sys/wrapping/wrap {"a":"b"}`, stdout: "wrapping_token_ttl              5m\n"},
		{args: "wrap -field=wrapping_token -", stdin: `{"n":1}`, last: `PUT sys/wrapping/wrap {"n":1}`, stdout: "hvs.wrap"},
		{args: "wrap", stderr: "takes KEY=VALUE", status: 1},
		{args: "unwrap -lookup x", last: `PUT sys/wrapping/lookup {"token":"x"}`, stdout: "creation_ttl     5m\n"},
		{args: "unwrap -rewrap x", last: "PUT sys/wrapping/rewrap", stdout: "hvs.wrap"},
		{args: "unwrap -rewrap -lookup x", stderr: "exclude each other", status: 1},
		{args: "lease list", last: "GET sys/leases/lookup?list=true", stdout: "Keys\n----\ncloud/\n"},
		{args: "lease list a/b/", last: "GET sys/leases/lookup/a/b?list=true", stderr: `no leases below "a/b/"`, status: 2},
		{args: "lease list -irrevocable", last: "GET sys/leases?limit=none&type=irrevocable", stdout: "cloud/creds/a/1    no such user\n"},
		{args: "lease list -irrevocable a", stderr: "takes no prefix", status: 1},
		{args: "lease list -children", stderr: "-children goes with -irrevocable", status: 1},
		{args: "lease count -children", last: "GET sys/leases/count?include_child_namespaces=true", stdout: "cloud_1    3\ntotal      3\n"},
		{args: "lease count -irrevocable -field=lease_count", last: "GET sys/leases/count?type=irrevocable", stdout: "3"},
		{args: "lease tidy", last: "PUT sys/leases/tidy", stdout: "successfully started"},
		{args: "audit hash file -", stdin: "hunter2\n", last: `PUT sys/audit-hash/file {"input":"hunter2"}`, stdout: "hmac-sha256:00"},
		{args: "audit search -since=2h -actor=ana -outcome=denied file", last: `POST sys/audit-search/file {"actor":"ana","buckets":0,"limit":100,"outcome":"denied","since":"2h"}`, stdout: "team/kv/data/a"},
		{args: "audit hash file", stderr: "stdin is no terminal", status: 1},
		{args: "policy write app -", stdin: "\n", stderr: "stdin is empty", status: 1},
		{args: "policy password write db -", stdin: "length = 20", last: `PUT sys/policies/password/db {"policy":"length = 20"}`, stdout: "Success!"},
		{args: "policy password read db", last: "GET sys/policies/password/db", stdout: "length = 20\n"},
		{args: "policy password read none", last: "GET sys/policies/password/none", stderr: "coffer policy password list", status: 2},
		{args: "policy password list", last: "GET sys/policies/password?list=true", stdout: "db\n"},
		{args: "policy password generate -field=password db", last: "GET sys/policies/password/db/generate", stdout: "s3same"},
		{args: "policy password delete db", last: "DELETE sys/policies/password/db", stdout: "Success!"},
		{args: "quota list", last: "GET sys/quotas/storage?list=true", stdout: "rate-limit    shop\n"},
		{args: "quota list lease-count", last: "GET sys/quotas/lease-count?list=true", stderr: "no quotas", status: 2},
		{args: "quota list -format=json", last: "GET sys/quotas/storage?list=true", stdout: "\"rate-limit\": [\n    \"shop\"\n  ]"},
		{args: "quota read rate-limit shop", last: "GET sys/quotas/rate-limit/shop", stdout: "interval    1s\n"},
		{args: "quota read rate-limit none", last: "GET sys/quotas/rate-limit/none", stderr: `no rate-limit quota "none"`, status: 2},
		{args: "quota write rate-limit shop rate=100", last: `POST sys/quotas/rate-limit/shop {"rate":"100"}`, stdout: "Success!"},
		{args: "quota write rates shop rate=100", stderr: "there are rate-limit, lease-count, storage", status: 1},
		{args: "quota delete rate-limit shop", last: "DELETE sys/quotas/rate-limit/shop", stdout: "Success!"},
		{args: "quota config", last: "GET sys/quotas/config", stdout: "false"},
		{args: "quota config a=b", last: `POST sys/quotas/config {"a":"b"}`, stdout: "Success!"},
		{args: "identity entity list", last: "GET identity/entity/id?list=true", stdout: "ada     e2    a at auth/userpass/\nbob     e1    n/a\n"},
		{args: "identity group list", last: "GET identity/group/id?list=true", stderr: "there are no groups", status: 2},
		{args: "identity entity read -field=id ada", last: "GET identity/entity/name/ada", stdout: "e2"},
		{args: "identity entity read " + path.Base(entityByID), last: "GET " + entityByID, stdout: "eve"},
		{args: "identity entity read none", last: "GET identity/entity/name/none", stderr: "coffer identity entity list", status: 2},
		{args: "auth help userpass", last: "GET auth/userpass?help=1", stdout: "coffer login -method=userpass username=ada\n"},
		{args: "auth help auth/staff/", last: "GET auth/staff?help=1", stdout: "The staff.\n"},
		{args: "auth help none", last: "GET auth/none?help=1", stderr: "no type of one; there are approle, cert, saml, token, userpass", status: 2},
		{args: "path-help auth/staff", last: "GET auth/staff?help=1", stdout: "The staff.\n"},
		{args: "list -detailed identity/entity/id", last: "GET identity/entity/id?list=true", stdout: "Keys    aliases"},
		{args: "list -field=keys secret/metadata", last: "GET secret/metadata?list=true", stdout: `["app","teams/"]`},
		{args: "read -format=raw any/text", last: "GET any/text", stdout: "# not JSON"},
		{args: "read -format=raw -field=a any/text", stderr: "without -field", status: 1},
		{args: "read any/text", last: "GET any/text", stderr: "not JSON", status: 2},
		{args: "read any/quota", last: "GET any/quota", stderr: "coffer quota list", status: 2},
		{args: "read any/nowhere", last: "GET any/nowhere", stderr: "coffer namespace list", status: 2},
		{args: "read any/locked", last: "GET any/locked", stderr: "coffer namespace unlock", status: 2},
		{args: "token create -id=- -type=batch", stdin: "mine\n", last: `POST auth/token/create {"id":"mine","type":"batch"}`},
		{args: "token create -role=ci -entity-alias=x -period=1h -explicit-max-ttl=2h", last: `POST auth/token/create/ci {"entity_alias":"x","explicit_max_ttl":"2h","period":"1h"}`},
		{args: "token create -entity-alias=x", stderr: "-entity-alias needs -role", status: 1},
		{args: "login -method=userpass", stderr: "needs username=NAME", status: 1},
		{args: "login -method=userpass username=ada", stderr: "stdin is no terminal to ask for the password", status: 1},
		{args: "login -method=approle -mfa=x role_id=a", stderr: "-mfa takes METHOD:CODE", status: 1},
		{args: "login -mfa=phone:123456 x", stderr: "name one with -method", status: 1},
		{args: "login -token-only -no-print x", stderr: "neither -field nor -no-print", status: 1},
		{args: "login -no-store -method=approle -wrap-ttl=60s secret_id=b", last: `PUT auth/approle/login {"secret_id":"b"}`, stdout: "hvs.new"},
		{args: "token revoke -mode=other x", stderr: "-mode is orphan or path", status: 1},
		{args: "token renew x", last: `PUT auth/token/renew {"token":"x"}`, stderr: "wrong, or has ended", status: 2},
		{args: "path-help -format=json auth/staff", last: "GET auth/staff?help=1", stdout: `"help": "The staff."`},
		{args: "login -method=none role_id=a", last: `PUT auth/none/login {"role_id":"a"}`, stderr: "Name the place with -path", status: 2},

		{args: "status", last: "GET sys/health?haunhealthycode=200&perfstandbyok=true&standbyok=true", stdout: "HA Mode                 active\n"},
		{args: "status", last: "GET sys/health?haunhealthycode=200&perfstandbyok=true&standbyok=true", stdout: "Current                 false\nState Age               12.5s\nNot Current             it lags\nDisk                    failing\n"},
		{args: "status -format=json", last: "GET sys/health?haunhealthycode=200&perfstandbyok=true&standbyok=true", stdout: `"standby_behind_ms": 12500`},
		{args: "operator unseal YWI=", last: `PUT sys/unseal {"key":"YWI="}`, stdout: "Unseal Progress    1/3\n"},
		{args: "operator unseal -", stdin: "YWI=\n", last: `PUT sys/unseal {"key":"YWI="}`},
		{args: "operator unseal -reset", last: `PUT sys/unseal {"reset":true}`},
		{args: "operator unseal", stderr: "stdin is no terminal", status: 1},
		{args: "operator seal", last: "PUT sys/seal"},
		{args: "operator step-down", last: "PUT sys/step-down"},
		{args: "operator rotate", last: "GET sys/key-status", stdout: "Key Term            3\n"},
		{args: "operator members", last: "GET sys/ha-status", stdout: "http://a       https://c          true           1          n/a          full\n"},
		{args: "operator init -n=1 -t=1", last: `PUT sys/init {"secret_shares":1,"secret_threshold":1}`, stdout: "Unseal Key 1: YWI=\n\nInitial Root Token: hvs.root\n"},
		{args: "operator init -n=1 -t=1 -format=json", last: `PUT sys/init {"secret_shares":1,"secret_threshold":1}`, stdout: `"unseal_keys_hex": [` + "\n    \"6162\"\n  ]"},
		{args: "operator init -pgp-keys=nowhere/a.asc", last: "GET sys/seal-status", stderr: "-pgp-keys: open nowhere/a.asc", status: 1},
		{args: "operator raft list-peers", last: "GET sys/storage/raft/configuration", stdout: "n2      127.0.0.1:8202    follower    false\n"},
		{args: "operator raft certificates", last: "GET sys/storage/raft/certificates", stdout: "n1      2026-02-01T00:00:00Z    true\n"},
		{args: "operator raft rotate-ca", last: "POST sys/storage/raft/rotate-ca", stdout: "Success! The cluster has a new CA.\n"},
		{args: "operator raft remove-peer n2", last: `POST sys/storage/raft/remove-peer {"server_id":"n2"}`},
		{args: "operator raft promote n2", last: `POST sys/storage/raft/promote {"server_id":"n2"}`, stdout: "Success! n2 votes.\n"},
		{args: "operator raft demote n2", last: `POST sys/storage/raft/demote {"server_id":"n2"}`, stdout: "Success! n2 votes no more.\n"},
		{args: "operator raft join -retry http://a", last: `POST sys/storage/raft/join {"leader_api_addr":"http://a","leader_ca_cert":"","leader_client_cert":"","leader_client_key":"","non_voter":false,"retry":true}`, stdout: "Joined    true\n"},
		{args: "operator raft autopilot state", last: "GET " + autopilotAPI + "state", stdout: "n1      a          leader    true       0s              2            9             1.5s         low\n"},
		{args: "operator raft autopilot set-config -cleanup-dead-servers=false -min-quorum=3", last: "POST " + autopilotAPI + `configuration {"cleanup_dead_servers":false,"min_quorum":3}`},
	}
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.args, "/", ":"), func(t *testing.T) {
			r := record(t, answers)
			stdout, stderr, status := coffer(t, tt.stdin, strings.Fields(tt.args)...)
			last := ""
			if lines := r.lines(); len(lines) > 0 {
				last = lines[len(lines)-1]
			}
			if last != tt.last {
				t.Errorf("last request %q, want %q", last, tt.last)
			}
			if status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			if !strings.Contains(stdout, tt.stdout) {
				t.Errorf("stdout %q, want %q in it", stdout, tt.stdout)
			}
			if !strings.Contains(stderr, tt.stderr) || tt.stderr == "" && stderr != "" {
				t.Errorf("stderr %q, want %q in it", stderr, tt.stderr)
			}
		})
	}
}

func TestFieldIsBare(t *testing.T) {
	record(t, answers)
	if stdout, _, _ := coffer(t, "", "kv", "get", "-field=user", "secret/app"); stdout != "ada" {
		t.Errorf("-field printed %q, want the bare value", stdout)
	}
}

func TestHeaders(t *testing.T) {
	r := record(t, answers)
	_, stderr, status := coffer(t, "", "kv", "get", "-wrap-ttl=5m", "-ns=team-a/", "-header=X-One=1=2", "secret/app")
	if status != 0 {
		t.Fatal(stderr)
	}
	preflight, last := r.seen[0].header, r.seen[1].header
	if got := preflight.Get("X-Vault-Wrap-TTL"); got != "" {
		t.Errorf("the look-up of the mount was wrapped for %q", got)
	}
	for name, want := range map[string]string{
		"X-Vault-Wrap-TTL": "5m", "X-Vault-Token": "t", "X-Vault-Namespace": "team-a", "X-One": "1=2", "X-Vault-Request": "true",
	} {
		if got := last.Get(name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	coffer(t, "", "patch", "any/thing", "a=b")
	if got := r.seen[len(r.seen)-1].header.Get("Content-Type"); got != "application/merge-patch+json" {
		t.Errorf("a patch has the content type %q", got)
	}
}

func TestUnwrapUsesTheWrappingToken(t *testing.T) {
	r := record(t, answers)
	coffer(t, "hvs.wrap\n", "unwrap", "-")
	if got := r.seen[0].header.Get("X-Vault-Token"); got != "hvs.wrap" {
		t.Errorf("unwrap sent the token %q", got)
	}
}

func TestStatusOfSealedAndUninitialised(t *testing.T) {
	record(t, map[string]string{
		"GET sys/seal-status": `200 {"type":"shamir","initialized":true,"sealed":true,"t":3,"n":5,"progress":2}`,
		"GET sys/init":        `200 {"initialized":false}`,
	})
	stdout, stderr, status := coffer(t, "", "status")
	if status != 2 || stderr != "" || !strings.Contains(stdout, "Unseal Progress    2/3") {
		t.Errorf("status of a sealed server: %d, %q, %q", status, stdout, stderr)
	}
	if _, _, status := coffer(t, "", "operator", "init", "-status"); status != 2 {
		t.Errorf("init -status of a new server: %d, want 2", status)
	}
}

func TestInitOfAServerThatUnsealsItself(t *testing.T) {
	r := record(t, map[string]string{
		"GET sys/seal-status": `200 {"type":"static","initialized":false,"sealed":true,"recovery_seal":true}`,
		"PUT sys/init":        `200 {"keys":[],"keys_base64":[],"recovery_keys_base64":["cmVj"],"root_token":"hvs.root"}`,
	})
	stdout, _, _ := coffer(t, "", "operator", "init")
	if want := `PUT sys/init {"recovery_shares":5,"recovery_threshold":3}`; !slices.Contains(r.lines(), want) {
		t.Errorf("requests %q, want %q among them", r.lines(), want)
	}
	if !strings.Contains(stdout, "Recovery Key 1: cmVj\n") {
		t.Errorf("init printed %q", stdout)
	}
}

// TestUnwrapElsewhere opens a token of another namespace: alone it has no say, and the token in use speaks for it.
func TestUnwrapElsewhere(t *testing.T) {
	r := record(t, map[string]string{"PUT sys/wrapping/unwrap": `403 {"errors":["permission denied"]}`})
	_, stderr, status := coffer(t, "", "unwrap", "hvs.wrap")
	if want := []string{"PUT sys/wrapping/unwrap", `PUT sys/wrapping/unwrap {"token":"hvs.wrap"}`}; !slices.Equal(r.lines(), want) {
		t.Errorf("requests %q, want %q", r.lines(), want)
	}
	if got := r.seen[1].header.Get("X-Vault-Token"); got != "t" {
		t.Errorf("the second request had the token %q, want that in use", got)
	}
	if status != 2 || !strings.Contains(stderr, "name that with -namespace") {
		t.Errorf("status %d, stderr %q, want 2 and what to do", status, stderr)
	}
}

func TestUnwrapUsed(t *testing.T) {
	for _, flag := range []string{"-lookup", "-rewrap", "-format=table"} {
		refused := `400 {"errors":["wrapping token is not valid or does not exist"]}`
		record(t, map[string]string{"PUT sys/wrapping/unwrap": refused, "PUT sys/wrapping/rewrap": refused, "PUT sys/wrapping/lookup": refused})
		_, stderr, status := coffer(t, "", "unwrap", flag, "hvs.wrap")
		if status != 2 || !strings.Contains(stderr, "another party may have opened it") {
			t.Errorf("unwrap %s: status %d, stderr %q, want 2 and a warning", flag, status, stderr)
		}
	}
}

// TestWrappedLogin is opened if the token is to be stored, and printed if not.
func TestWrappedLogin(t *testing.T) {
	lines := map[string]string{"PUT auth/approle/login": wrapped, "PUT sys/wrapping/unwrap": created}
	login := []string{"login", "-method=approle", "-wrap-ttl=60s", "role_id=a"}
	r := record(t, lines)
	t.Setenv("COFFER_TOKEN", "")
	if _, stderr, status := coffer(t, "", login...); status != 0 {
		t.Fatalf("status %d, %s", status, stderr)
	}
	if got, _ := local.CurrentToken(); got != "hvs.new" {
		t.Errorf("stored %q, want the token that was wrapped", got)
	}
	if got := r.seen[1].header.Get("X-Vault-Token"); got != "hvs.wrap" {
		t.Errorf("unwrapped with the token %q", got)
	}
	r = record(t, lines)
	t.Setenv("COFFER_TOKEN", "")
	stdout, _, _ := coffer(t, "", append(login, "-token-only")...)
	if got, _ := local.CurrentToken(); stdout != "hvs.wrap" || got != "" || len(r.lines()) != 1 {
		t.Errorf("-token-only printed %q, stored %q, sent %q", stdout, got, r.lines())
	}
}

// TestSecondFactorHeader gives the code with the login, from stdin.
func TestSecondFactorHeader(t *testing.T) {
	r := record(t, answers)
	if _, stderr, status := coffer(t, "492039\n", "login", "-method=approle", "-mfa=phone:-", "-mfa=key:7", "role_id=a"); status != 0 {
		t.Fatal(stderr)
	}
	if got := r.seen[0].header.Values("X-Vault-MFA"); !slices.Equal(got, []string{"phone:492039", "key:7"}) {
		t.Errorf("the login carried %q", got)
	}
}
