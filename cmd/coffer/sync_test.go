package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	syncDest     = "sys/sync/destinations/cloud1-sm/prod"
	syncSynced   = `"kv_1/app":{"accessor":"kv_1","mount":"secret/","secret_name":"app","sub_key":"","external_name":"vault/kv_1/app","sync_status":"SYNCED","version":3,"attempts":0,"updated_at":"2026-01-02T03:04:05Z"}`
	syncConflict = `"kv_1/x":{"accessor":"kv_1","mount":"secret/","secret_name":"x","sub_key":"","external_name":"n\u001b[2J","sync_status":"CONFLICT","code":"conflict","cause":"exists\nalready","version":1,"attempts":2,"updated_at":"2026-01-02T03:04:05Z","next_retry":"2026-01-02T03:05:05Z"}`
	syncPending  = `"kv_1/x":{"accessor":"kv_1","mount":"secret/","secret_name":"x","sub_key":"K","sync_status":"PENDING","version":0,"attempts":0}`
	syncPaused   = `"kv_1/x":{"accessor":"kv_1","mount":"secret/","secret_name":"x","sync_status":"PENDING","code":"paused","cause":"syncing is paused","version":1}`
	syncLimited  = `"kv_1/x":{"accessor":"kv_1","mount":"secret/","secret_name":"x","sync_status":"PENDING","code":"rate_limited","cause":"rate limited until 03:05:05 UTC: it was written often","version":1,"next_retry":"2026-01-02T03:05:05Z"}`
	syncLeaving  = `"kv_1/x":{"accessor":"kv_1","mount":"secret/","secret_name":"x","sync_status":"UNSYNCING","version":1}`
	syncTriedNew = `"kv_1/new":{"accessor":"kv_1","mount":"secret/","secret_name":"new","sync_status":"SYNCING","version":0}`
	syncTried    = `"kv_1/x":{"accessor":"kv_1","mount":"secret/","secret_name":"x","sync_status":"SYNCING","code":"unreachable","cause":"no answer in time; backing off until 10:00:00 UTC","version":1}`
	syncBacksOff = `"kv_1/x":{"accessor":"kv_1","mount":"secret/","secret_name":"x","sync_status":"PENDING","code":"unreachable","cause":"no answer in time","version":1}`
	syncDrifted  = `"kv_1/app":{"accessor":"kv_1","mount":"secret/","secret_name":"app","sync_status":"SYNCED","drift":"changed","version":1}`
)

// associated is an answer with entries.
func associated(entries ...string) string {
	return `{"data":{"associated_secrets":{` + strings.Join(entries, ",") + `},"store_name":"prod","store_type":"cloud1-sm"}}`
}

// syncTable is what the server answers.
var syncTable = map[string]string{
	"GET sys/internal/ui/mounts/secret/app":                        `200 {"data":{"path":"secret/","type":"kv","options":{"version":"2"}}}`,
	"GET sys/internal/ui/mounts/secret/team":                       `200 {"data":{"path":"secret/","type":"kv","options":{"version":"2"}}}`,
	"GET sys/internal/ui/mounts/secret":                            `200 {"data":{"path":"secret/","type":"kv","options":{"version":"2"}}}`,
	"GET sys/sync/destinations":                                    `200 {"data":{"keys":["cloud1-sm/","repohost/"],"key_info":{"cloud1-sm/":["prod"],"repohost/":["shut"]},"total_destinations":2}}`,
	"GET sys/sync/destinations/repohost":                           `200 {"data":{"keys":["shut"],"total_destinations":1}}`,
	"GET " + syncDest:                                              `200 {"data":{"name":"prod","type":"cloud1-sm","paused":false,"connection_details":{"region":"r"},"options":{"custom_tags":{}}}}`,
	"PUT " + syncDest:                                              `200 {"data":{"name":"prod","type":"cloud1-sm","connection_details":{"access_key_id":"*****"},"options":{}},"warnings":["mind"]}`,
	"PATCH " + syncDest:                                            `200 {"data":{"name":"prod","type":"cloud1-sm","connection_details":{"region":"r"},"options":{}}}`,
	"PUT sys/sync/destinations/repohost/shut":                      `400 {"errors":["the destination is being purged"]}`,
	"DELETE " + syncDest:                                           "204",
	"DELETE sys/sync/destinations/repohost/shut":                   `202 {"data":{"purge_initiated_at":"2026-01-02T03:04:05Z"}}`,
	"POST " + syncDest + "/verify":                                 `200 {"data":{"ok":true,"checks":[{"name":"reachable","result":"ok","text":"there is an answer"},{"name":"create","result":"unknown","text":"not tried"}]}}`,
	"POST sys/sync/destinations/repohost/b/verify":                 `200 {"data":{"ok":false,"checks":[{"name":"credentials","result":"failed","text":"refused"}]}}`,
	"POST " + syncDest + "/pause":                                  `200 {"data":{"paused":true}}`,
	"POST " + syncDest + "/resume":                                 `200 {"data":{"paused":false}}`,
	"GET " + syncDest + "/associations":                            "200 " + associated(syncSynced, syncConflict),
	"GET sys/sync/destinations/repohost/shut/associations":         `403 {"errors":["permission denied"]}`,
	"GET sys/sync/destinations/repohost/drift/associations":        "200 " + associated(syncDrifted),
	"GET sys/sync/destinations/repohost/empty/associations":        "200 " + associated(),
	"GET sys/sync/destinations/repohost/busy/associations":         "200 " + associated(syncLimited),
	"GET sys/sync/destinations/repohost/tried/associations":        "200 " + associated(syncTried, syncTriedNew),
	"POST sys/sync/destinations/repohost/asks/associations/retry":  `200 {"data":{"queued":2},"warnings":["the destination has asked to wait"]}`,
	"GET sys/sync/destinations/repohost/kv/associations":           `200 {"data":{"x":1}}`,
	"GET sys/sync/associations/destinations":                       `200 {"data":{"associated_destinations":{"repohost/web":{"type":"repohost","name":"web","mount":"secret/","secret_name":"app","sync_status":"SYNCED","version":2}}}}`,
	"POST " + syncDest + "/associations/set":                       "200 " + associated(syncSynced),
	"POST sys/sync/destinations/repohost/c/associations/set":       strings.Replace("200 "+associated(syncConflict), `"data"`, `"warnings":["mind"],"data"`, 1),
	"POST " + syncDest + "/associations/remove":                    `200 {"data":{"associated_secrets":{},"store_name":"prod"}}`,
	"POST sys/sync/destinations/repohost/c/associations/remove":    `200 {"data":{"associated_secrets":{}},"warnings":["still being removed"]}`,
	"POST sys/sync/destinations/cloud1-sm/many/associations/adopt": `200 {"data":{"actions":[{"mount":"m/","secret_name":"a/b","external_name":"a/b","action":"adopt","reason":"r"}],"totals":{"adopt":2,"skip":1},"next":""}}`,
	"POST sys/sync/destinations/cloud1-sm/many/import":             `200 {"data":{"actions":[{"mount":"m/","secret_name":"a/b","external_name":"a/b","action":"create","reason":""}],"totals":{"create":3,"skip":1},"next":""}}`,
	"POST " + syncDest + "/associations/adopt":                     "200 " + associated(syncSynced),
	"POST " + syncDest + "/associations/retry":                     `200 {"data":{"queued":7}}`,
	"POST sys/sync/destinations/repohost/drift/associations/retry": `200 {"data":{"queued":0}}`,
	"POST sys/sync/destinations/repohost/c/associations/retry":     "200 " + associated(syncPending),
	"POST " + syncDest + "/associations/pause":                     "200 " + associated(syncPaused),
	"POST " + syncDest + "/associations/history":                   `200 {"data":{"events":[{"at":"2026-01-02T03:04:05Z","version":1,"done":"","sync_status":"EXTERNAL_SERVICE_ERROR","code":"throttled","cause":"slow down"},{"at":"2026-01-02T03:04:15Z","version":1,"done":"created 1","sync_status":"SYNCED","code":"","cause":""}]}}`,
	"POST " + syncDest + "/plan":                                   `200 {"data":{"actions":[{"secret_name":"app","sub_key":"","external_name":"a","action":"none","reason":"is as it should be"},{"mount":"secret/","secret_name":"b","sub_key":"K","external_name":"n","action":"create","reason":"is not there yet"},{"secret_name":"c","external_name":"c","action":"conflict","reason":"exists"}],"totals":{"none":1,"create":1,"conflict":1}}}`,
	"POST " + syncDest + "/drift":                                  `200 {"data":{"drifted":[{"secret_name":"app","sub_key":"","external_name":"a","drift":"changed","action":"reported"}],"names":4}}`,
	"POST sys/sync/destinations/repohost/none/plan":                `200 {"data":{"actions":[],"totals":{}}}`,
	"POST sys/sync/destinations/repohost/u/associations/set":       `403 {"errors":["permission denied: to sync a secret one must be able to read it: \"s\" of mount \"m/\""]}`,
	"POST sys/sync/destinations/repohost/r/drift":                  `200 {"data":{"drifted":[{"secret_name":"app","external_name":"a","drift":"missing","action":"repaired"}],"names":1}}`,
	"POST sys/sync/destinations/repohost/none/drift":               `200 {"data":{"drifted":[],"names":9}}`,
	"GET sys/sync/config":                                          `200 {"data":{"disabled":false,"queue_capacity":1000000}}`,
	"PATCH sys/sync/config":                                        `200 {"data":{"disabled":true,"queue_capacity":1000000}}`,
	"DELETE sys/sync/config":                                       `200 {"data":{"disabled":false,"queue_capacity":1000000}}`,
}

func TestSyncCommands(t *testing.T) {
	const set, remove = "POST " + syncDest + "/associations/set ", "POST " + syncDest + "/associations/remove "
	tests := []struct {
		name, args     string // split at spaces
		stdin          string
		last           string // the last request; "" if there is none
		stdout, stderr string // parts
		status         int
	}{
		{name: "list", args: "destinations list", last: "GET sys/sync/destinations?list=true", stdout: "Destination\n-----------\ncloud1-sm/prod\nrepohost/shut\n"},
		{name: "list as JSON", args: "destinations list -format=json", last: "GET sys/sync/destinations?list=true", stdout: `"cloud1-sm/prod",`},
		{name: "list a type", args: "destinations list repohost/", last: "GET sys/sync/destinations/repohost?list=true", stdout: "shut\n"},
		{name: "list a type of which there is none", args: "destinations list cloud3-sm", last: "GET sys/sync/destinations/cloud3-sm?list=true", stderr: "there are no destinations of type cloud3-sm", status: 2},
		{name: "write what is being purged", args: "destinations write repohost/shut a=b", last: `PUT sys/sync/destinations/repohost/shut {"a":"b"}`, stderr: "coffer sync destinations patch repohost/shut KEY=VALUE", status: 2},
		{name: "read", args: "destinations read cloud1-sm/prod", last: "GET " + syncDest, stdout: "custom_tags    n/a\nname           prod\npaused         false\nregion         r\n"},
		{name: "read a field", args: "destinations read -field=region cloud1-sm/prod", last: "GET " + syncDest, stdout: "r"},
		{name: "read none", args: "destinations read cloud1-sm/x", last: "GET sys/sync/destinations/cloud1-sm/x", stderr: "there is no destination cloud1-sm/x", status: 2},
		{name: "read what", args: "destinations read prod", stderr: "a destination is TYPE/NAME", status: 1},
		{name: "read a path", args: "destinations read a/b/c", stderr: "a destination is TYPE/NAME", status: 1},
		{name: "write", args: "destinations write cloud1-sm/prod secret_access_key=- region=r", stdin: "hush", last: "PUT " + syncDest + ` {"region":"r","secret_access_key":"hush"}`, stdout: "access_key_id    *****\n", stderr: "Warning: mind"},
		{name: "write nothing", args: "destinations write cloud1-sm/prod", last: "PUT " + syncDest + " {}", stdout: "*****"},
		{name: "patch", args: "destinations patch cloud1-sm/prod region=r", last: "PATCH " + syncDest + ` {"region":"r"}`, stdout: "region"},
		{name: "write and verify", args: "destinations write -verify cloud1-sm/prod region=r", last: "POST " + syncDest + "/verify {}", stdout: "Success! The destination cloud1-sm/prod is stored.\n\nCheck        Status     What Was Seen\n-----"},
		{name: "write and verify a field", args: "destinations write -verify -field=x cloud1-sm/prod", stderr: "-verify goes without", status: 1},
		{name: "verify", args: "destinations verify cloud1-sm/prod", last: "POST " + syncDest + "/verify {}", stdout: "create       unknown    not tried\n"},
		{name: "verify fails", args: "destinations verify repohost/b", last: "POST sys/sync/destinations/repohost/b/verify {}", stdout: "credentials    failed    refused\n", status: 2},
		{name: "verify none", args: "destinations verify repohost/x", last: "POST sys/sync/destinations/repohost/x/verify {}", stderr: "there is no destination repohost/x", status: 2},
		{name: "delete", args: "destinations delete cloud1-sm/prod", last: "DELETE " + syncDest, stdout: "Success! The destination cloud1-sm/prod is deleted"},
		{name: "purge", args: "destinations delete -purge repohost/shut", last: "DELETE sys/sync/destinations/repohost/shut?purge=true", stdout: "coffer sync status -watch repohost/shut"},
		{name: "force", args: "destinations delete -force cloud1-sm/prod", last: "DELETE " + syncDest + "?force_delete=true", stdout: "Success!"},
		{name: "purge and force", args: "destinations delete -force -purge cloud1-sm/prod", stderr: "exclude each other", status: 1},
		{name: "pause all", args: "destinations pause cloud1-sm/prod", last: "POST " + syncDest + "/pause {}", stdout: "Success! Syncing cloud1-sm/prod is paused.\n"},
		{name: "resume all", args: "destinations resume cloud1-sm/prod", last: "POST " + syncDest + "/resume {}", stdout: "Success! cloud1-sm/prod is synced again.\n"},

		{name: "associate", args: "associate cloud1-sm/prod secret/app", last: set + `{"mount":"secret","secret_name":"app"}`, stdout: "\n1 of 1 synced\n"},
		{name: "associate by mount", args: "associate -mount=/secret/ cloud1-sm/prod a/b", last: set + `{"mount":"secret","secret_name":"a/b"}`, stdout: "SYNCED"},
		{name: "associate below", args: "associate -prefix cloud1-sm/prod secret/team/", last: set + `{"mount":"secret","secret_prefix":"team/"}`},
		{name: "associate a mount", args: "associate -prefix cloud1-sm/prod secret/", last: set + `{"mount":"secret","secret_prefix":"*"}`},
		{name: "associate a mount by its accessor", args: "associate -prefix -mount=kv_1 cloud1-sm/prod", last: set + `{"mount":"kv_1","secret_prefix":"*"}`},
		{name: "associate with values of another shape", args: "associate -value-format=dotenv -rename=password=DB_PASSWORD -rename=a=b=c -mount=m cloud1-sm/prod s", last: set + `{"format":"dotenv","mount":"m","rename":{"a":"b=c","password":"DB_PASSWORD"},"secret_name":"s"}`},
		{name: "associate with a template of values", args: "associate -value-template={{.Secrets.a}} -rename= -mount=m cloud1-sm/prod s", last: set + `{"mount":"m","rename":{},"secret_name":"s","value_template":"{{.Secrets.a}}"}`},
		{name: "associate with terms", args: "associate -granularity=secret-key -template={{.SecretKey}} -value-format=raw -include=A* -include=B -exclude=C -deletion-policy=retain -drift-policy=repair -mount=m cloud1-sm/prod s", last: set + `{"deletion_policy":"retain","drift_policy":"repair","exclude":["C"],"format":"raw","granularity":"secret-key","include":["A*","B"],"mount":"m","secret_name":"s","secret_name_template":"{{.SecretKey}}"}`},
		{name: "associate nothing", args: "associate cloud1-sm/prod", stderr: "name the secret", status: 1},
		{name: "associate as JSON", args: "associate -format=json -mount=m cloud1-sm/prod s", last: set + `{"mount":"m","secret_name":"s"}`, stdout: `"store_name": "prod"`},
		{name: "a conflict fails", args: "associate -mount=m repohost/c s", last: `POST sys/sync/destinations/repohost/c/associations/set {"mount":"m","secret_name":"s"}`, stdout: "n\\x1b[2J         CONFLICT    conflict    1", stderr: "Warning: mind", status: 2},
		{name: "associate in what format", args: "associate -format=xml -mount=m cloud1-sm/prod s", stderr: `the format "xml" is unknown`, status: 1},
		{name: "associate which keys", args: "associate -include= -mount=m cloud1-sm/prod s", stderr: "-include takes the name of a key", status: 1},
		{name: "associate what one cannot read", args: "associate -mount=m repohost/u s", last: `POST sys/sync/destinations/repohost/u/associations/set {"mount":"m","secret_name":"s"}`, stderr: "of mount \"m/\"\n\n  URL:  POST ", status: 2},
		{name: "dissociate in what format", args: "dissociate -format=xml -mount=m cloud1-sm/prod s", stderr: `the format "xml" is unknown`, status: 1},
		{name: "pause none", args: "pause repohost/x", last: "POST sys/sync/destinations/repohost/x/pause {}", stderr: "there is no destination repohost/x", status: 2},
		{name: "retry what has not failed", args: "retry repohost/drift", last: "POST sys/sync/destinations/repohost/drift/associations/retry {}", stdout: "Nothing has failed there"},
		{name: "dissociate", args: "dissociate cloud1-sm/prod secret/app", last: remove + `{"mount":"secret","secret_name":"app"}`, stdout: "Success! secret/app is no longer synced to cloud1-sm/prod.\n"},
		{name: "dissociate and leave", args: "dissociate -retain -prefix cloud1-sm/prod secret/team/", last: remove + `{"mount":"secret","retain":true,"secret_prefix":"team/"}`, stdout: "Success! secret/team/* is"},
		{name: "dissociate slowly", args: "dissociate -mount=m repohost/c s", last: `POST sys/sync/destinations/repohost/c/associations/remove {"mount":"m","secret_name":"s"}`, stderr: "Warning: still being removed"},
		{name: "adopt", args: "adopt -mount=m cloud1-sm/prod s", last: "POST " + syncDest + `/associations/adopt {"mount":"m","secret_name":"s"}`, stdout: "SYNCED"},
		{name: "adopt a name", args: "adopt -mount=m cloud1-sm/prod s A B", last: "POST " + syncDest + `/associations/adopt {"external_names":["A","B"],"mount":"m","secret_name":"s"}`},
		{name: "adopt what", args: "adopt cloud1-sm/prod", stderr: "-all adopts, and overwrites, all that is in conflict", status: 1},
		{name: "adopt what of a mount", args: "adopt -mount=m cloud1-sm/prod", stderr: "-all adopts, and overwrites, all that is in conflict", status: 1},
		{name: "adopt what is equal", args: "adopt -equal cloud1-sm/many", last: "POST sys/sync/destinations/cloud1-sm/many/associations/adopt {\"equal\":true}", stdout: "Success! 2 names are being adopted"},
		{name: "adopt a prefix", args: "adopt -mount=m -prefix cloud1-sm/many a/", last: "POST sys/sync/destinations/cloud1-sm/many/associations/adopt {\"mount\":\"m\",\"secret_prefix\":\"a/\"}", stdout: "Success! 2 names"},
		{name: "adopt all of a mount", args: "adopt -mount=m -all cloud1-sm/many", last: "POST sys/sync/destinations/cloud1-sm/many/associations/adopt {\"all\":true,\"mount\":\"m\"}", stdout: "Success! 2 names"},
		{name: "adopt, planned", args: "adopt -plan cloud1-sm/many", last: "POST sys/sync/destinations/cloud1-sm/many/associations/adopt {\"plan\":true}", stdout: "\n2 to adopt, 1 skipped\n"},
		{name: "import", args: "import -mount=m -names=a* cloud1-sm/many old/", last: "POST sys/sync/destinations/cloud1-sm/many/import {\"mount\":\"m\",\"names\":[\"a*\"],\"path_prefix\":\"old\"}", stdout: "\n3 created, 0 there already, with the same value, 1 skipped\n"},
		{name: "import where", args: "import cloud1-sm/many", stderr: "takes DESTINATION PATH", status: 1},
		{name: "retry all", args: "retry cloud1-sm/prod", last: "POST " + syncDest + "/associations/retry {}", stdout: "Success! 7 queued; coffer sync status -watch cloud1-sm/prod"},
		{name: "retry what asks to wait", args: "retry repohost/asks", last: "POST sys/sync/destinations/repohost/asks/associations/retry {}", stdout: "Success! 2 queued", stderr: "Warning: the destination has asked to wait"},
		{name: "retry one", args: "retry -mount=m repohost/c s", last: `POST sys/sync/destinations/repohost/c/associations/retry {"mount":"m","secret_name":"s"}`, stdout: "0 of 1 synced, 1 PENDING\n"},
		{name: "pause one", args: "pause -mount=m cloud1-sm/prod s", last: "POST " + syncDest + `/associations/pause {"mount":"m","secret_name":"s"}`, stdout: "Success! Syncing m/s to cloud1-sm/prod is paused.\n"},
		{name: "pause a destination", args: "pause cloud1-sm/prod", last: "POST " + syncDest + "/pause {}", stdout: "Success! Syncing cloud1-sm/prod is paused.\n"},
		{name: "history", args: "history -mount=m cloud1-sm/prod s", last: "POST " + syncDest + `/associations/history {"mount":"m","secret_name":"s"}`, stdout: "2026-01-02T03:04:05Z    1          -            EXTERNAL_SERVICE_ERROR    throttled    slow down\n2026-01-02T03:04:15Z    1          created 1    SYNCED                    -            -\n"},
		{name: "history of none", args: "history -mount=m repohost/c s", last: `POST sys/sync/destinations/repohost/c/associations/history {"mount":"m","secret_name":"s"}`, stderr: "there is no destination repohost/c", status: 2},

		{name: "plan", args: "plan cloud1-sm/prod", last: "POST " + syncDest + "/plan {}", stdout: "create      secret/b    K      n                is not there yet\nconflict    c           -      c                exists\n\n1 in conflict, 1 to create, 1 as they should be\n"},
		{name: "plan of nothing", args: "plan repohost/none", last: "POST sys/sync/destinations/repohost/none/plan {}", stdout: "Nothing would be done: "},
		{name: "plan all", args: "plan -all cloud1-sm/prod", last: "POST " + syncDest + "/plan {}", stdout: "none        app "},
		{name: "plan a secret", args: "plan -prefix -include=A -mount=m cloud1-sm/prod t/", last: "POST " + syncDest + `/plan {"include":["A"],"mount":"m","secret_prefix":"t/"}`},
		{name: "plan as JSON", args: "plan -format=json cloud1-sm/prod", last: "POST " + syncDest + "/plan {}", stdout: `"reason": "is as it should be"`},
		{name: "drift", args: "drift cloud1-sm/prod", last: "POST " + syncDest + "/drift {}", stdout: "changed    app       -      a                reported\n\n1 of 4 names differ\n", status: 2},
		{name: "drift, repaired", args: "drift repohost/r", last: "POST sys/sync/destinations/repohost/r/drift {}", stdout: "missing    app"},
		{name: "no drift", args: "drift repohost/none", last: "POST sys/sync/destinations/repohost/none/drift {}", stdout: "0 of 9 names differ\n"},
		{name: "drift as JSON", args: "drift -format=json cloud1-sm/prod", last: "POST " + syncDest + "/drift {}", stdout: `"names": 4`, status: 2},

		{name: "config", args: "config", last: "GET sys/sync/config", stdout: "queue_capacity    1000000\n"},
		{name: "config, changed", args: "config disabled=true", last: `PATCH sys/sync/config {"disabled":"true"}`, stdout: "disabled          true\n"},
		{name: "config of notifications", args: "config notification_url=https://ops.example.com notification_signing_key=0123456789abcdef", last: `PATCH sys/sync/config {"notification_signing_key":"0123456789abcdef","notification_url":"https://ops.example.com"}`},
		{name: "config, reset", args: "config -reset", last: "DELETE sys/sync/config", stdout: "disabled          false\n"},
		{name: "config, both", args: "config -reset disabled=true", stderr: "-reset goes without settings", status: 1},

		{name: "status of what may be read", args: "status", last: "GET sys/sync/destinations/repohost/shut/associations", stdout: "1 of 2 synced, 1 CONFLICT\n", stderr: "Left out: the token may not read repohost/shut.\n"},
		{name: "status, a cause", args: "status cloud1-sm/prod", last: "GET " + syncDest + "/associations", stdout: "exists already; is tried again now (2 so far)\n"},
		{name: "status, rate limited", args: "status repohost/busy", last: "GET sys/sync/destinations/repohost/busy/associations", stdout: "rate limited until 03:05:05 UTC: it was written often\n"},
		{name: "status, problems", args: "status -problems cloud1-sm/prod", last: "GET " + syncDest + "/associations", stdout: "-----\ncloud1-sm/prod    secret/x    -      n\\x1b[2J"},
		{name: "status, drift", args: "status -problems repohost/drift", last: "GET sys/sync/destinations/repohost/drift/associations", stdout: "drift: changed\n\n1 of 1 synced, 1 drifted\n"},
		{name: "status, what is only being synced", args: "status -problems repohost/tried", last: "GET sys/sync/destinations/repohost/tried/associations", stdout: "-----\nrepohost/tried    secret/x    -      -                SYNCING    unreachable    1          -        no answer in time; backing off until 10:00:00 UTC\n\n0 of 2"},
		{name: "status of nothing", args: "status repohost/empty", last: "GET sys/sync/destinations/repohost/empty/associations", stdout: "Nothing is associated.\n"},
		{name: "status of none", args: "status repohost/x", last: "GET sys/sync/destinations/repohost/x/associations", stderr: "there is no destination repohost/x", status: 2},
		{name: "status, refused", args: "status repohost/shut", last: "GET sys/sync/destinations/repohost/shut/associations", stderr: "permission denied", status: 2},
		{name: "status of something else", args: "status repohost/kv", last: "GET sys/sync/destinations/repohost/kv/associations", stderr: "does not show associations", status: 2},
		{name: "status of a secret", args: "status -secret=secret/app", last: "GET sys/sync/associations/destinations?mount=secret&secret_name=app", stdout: "repohost/web    secret/app    -      -                SYNCED    -       2          -        -\n"},
		{name: "status of a secret elsewhere", args: "status -mount=m -secret=app repohost/other", last: "GET sys/sync/associations/destinations?mount=m&secret_name=app", stderr: "m/app is not synced to repohost/other", status: 2},
		{name: "status as JSON", args: "status -format=json cloud1-sm/prod", last: "GET " + syncDest + "/associations", stdout: "\"totals\": {\n    \"CONFLICT\": 1,\n    \"SYNCED\": 1\n  }"},
		{name: "status, mount alone", args: "status -mount=m", stderr: "-mount goes with -secret", status: 1},
		{name: "watch how often", args: "status -watch -interval=often cloud1-sm/prod", stderr: "-interval takes", status: 1},
		{name: "watch how long", args: "status -watch -timeout=soon cloud1-sm/prod", stderr: "-timeout takes", status: 1},
		{name: "watch in what format", args: "status -watch -format=xml cloud1-sm/prod", stderr: `the format "xml" is unknown`, status: 1},
		{name: "watch what is stuck", args: "status -watch cloud1-sm/prod", last: "GET " + syncDest + "/associations", stdout: " 1 of 2 synced, 1 CONFLICT\n", stderr: "cannot go on by itself", status: 2},
		{name: "a curl of several", args: "status -output-curl-string", stderr: "it sends several requests", status: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := record(t, syncTable)
			stdout, stderr, status := coffer(t, tt.stdin, append([]string{"sync"}, strings.Fields(tt.args)...)...)
			if strings.Contains(stderr, "must be able to read") && strings.Contains(stderr, "capabilities") {
				t.Errorf("the hint is about another path: %q", stderr)
			}
			if status != tt.status || !strings.Contains(stdout, tt.stdout) || !strings.Contains(stderr, tt.stderr) {
				t.Errorf("status %d\nstdout %q\nstderr %q\nwant %d\n%q\n%q", status, stdout, stderr, tt.status, tt.stdout, tt.stderr)
			}
			last := ""
			if lines := r.lines(); len(lines) > 0 {
				last = lines[len(lines)-1]
			}
			if last != tt.last {
				t.Errorf("last request %q, want %q", last, tt.last)
			}
		})
	}
}

// TestSyncWatch prints a line for each change, outlives a server that is away, and ends when all is settled.
func TestSyncWatch(t *testing.T) {
	tests := []struct {
		name   string
		steps  []string // answers; the last one stays
		flags  string
		want   []string
		status int
	}{
		{
			name:  "until all is synced",
			steps: []string{associated(syncSynced, syncPending), associated(syncSynced, syncPending), "", associated(syncSynced)},
			want:  []string{"1 of 2 synced, 1 PENDING", "no answer: sealed", "1 of 1 synced"},
		},
		{name: "also until what is rate limited is synced", steps: []string{associated(syncLimited), associated(syncSynced)}, want: []string{"0 of 1 synced, 1 PENDING", "1 of 1 synced"}},
		{name: "until an operator has to act", steps: []string{associated(syncPending), associated(syncConflict)}, want: []string{"0 of 1 synced, 1 PENDING", "0 of 1 synced, 1 CONFLICT"}, status: 2},
		{name: "for what backs off", steps: []string{associated(syncBacksOff), associated(syncSynced)}, want: []string{"0 of 1 synced, 1 PENDING", "1 of 1 synced"}},
		{name: "not for what is paused", steps: []string{associated(syncPaused)}, want: []string{"0 of 1 synced, 1 PENDING"}, status: 2},
		{name: "until what is purged is gone", steps: []string{associated(syncLeaving), "gone"}, want: []string{"0 of 1 synced, 1 UNSYNCING", "destination is gone."}},
		{name: "not of what is gone otherwise", steps: []string{associated(syncPending), "gone"}, want: []string{"0 of 1 synced, 1 PENDING"}, status: 2},
		{name: "until time is over", steps: []string{associated(syncPending)}, flags: "-timeout=1ms", want: []string{"0 of 1 synced, 1 PENDING"}, status: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				step := tt.steps[min(asked, len(tt.steps)-1)]
				asked++
				switch step {
				case "":
					w.WriteHeader(http.StatusServiceUnavailable)
					step = `{"errors":["sealed"]}`
				case "gone":
					w.WriteHeader(http.StatusNotFound)
					step = `{"errors":[]}`
				}
				fmt.Fprint(w, step)
			}))
			defer server.Close()
			clearEnv(t)
			t.Setenv("COFFER_ADDR", server.URL)
			args := append([]string{"sync", "status", "-watch", "-interval=1ms"}, strings.Fields(tt.flags)...)
			stdout, stderr, status := coffer(t, "", append(args, "cloud1-sm/prod")...)
			if status != tt.status {
				t.Errorf("status %d: %s", status, stderr)
			}
			var got []string
			for line := range strings.Lines(stdout) {
				_, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
				got = append(got, text)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("printed %q, want %q", got, tt.want)
			}
		})
	}
}

// A watch that is interrupted ends as such, whatever the status was.
func TestSyncWatchInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		interrupt()
		fmt.Fprint(w, associated(syncPending))
	}))
	defer server.Close()
	clearEnv(t)
	t.Setenv("COFFER_ADDR", server.URL)
	var out, errs bytes.Buffer
	if status := run(ctx, []string{"coffer", "sync", "status", "-watch", "repohost/web"}, strings.NewReader(""), &out, &errs); status != 1 || errs.String() != "Error: interrupted\n" {
		t.Errorf("status %d: %s", status, errs.String())
	}
}

// Who may not list destinations is told that one can be named.
func TestSyncListRefused(t *testing.T) {
	record(t, map[string]string{"GET sys/sync/destinations": `403 {"errors":["permission denied"]}`})
	if _, stderr, status := coffer(t, "", "sync", "status"); status != 2 || !strings.Contains(stderr, "coffer sync status TYPE/NAME") {
		t.Errorf("status %d: %s", status, stderr)
	}
}

// TestSyncListHasHealth: a list of destinations says which of them need a look.
func TestSyncListHasHealth(t *testing.T) {
	record(t, map[string]string{"GET sys/sync/destinations": `200 {"data":{"keys":["cloud1-sm/"],"key_info":{"cloud1-sm/":["good","down"]},"total_destinations":2,"health":{
		"cloud1-sm/good":{"circuit":"closed","links":{"SYNCED":2,"UNSYNCED":1},"drifted":0,"drift_checked_at":"2026-01-02T03:04:05Z"},
		"cloud1-sm/down":{"circuit":"open","circuit_open_until":"2026-01-02T03:04:05Z","circuit_code":"unreachable","links":{"SYNCED":2,"EXTERNAL_SERVICE_ERROR":3},"drifted":1,
			"oldest_unsynced_change":"2026-01-02T03:04:05Z","drift_check_failed_at":"2026-01-02T03:04:05Z","drift_check_code":"access_denied"}}}}`})
	stdout, stderr, status := coffer(t, "", "sync", "destinations", "list")
	for _, want := range []string{`cloud1-sm/good +3 of 3 +- +closed +0 +\d+d\n`, `cloud1-sm/down +2 of 5 +\d+d +open until 03:04:05 UTC \(unreachable\) +1 +-, failed \d+d \(access_denied\)\n`} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("%q does not match %q", stdout, want)
		}
	}
	if status != 0 || stderr != "" {
		t.Errorf("status %d: %s", status, stderr)
	}
}
