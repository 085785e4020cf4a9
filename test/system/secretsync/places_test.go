package secretsync_test

import (
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1ssm/cloud1ssmtest"
	"github.com/coffer-project/coffer/engines/secretsync/gitlab/gitlabtest"
	"github.com/coffer-project/coffer/engines/secretsync/kubernetes/kubernetestest"
	"github.com/coffer-project/coffer/engines/secretsync/webhook/webhooktest"
)

// place is a destination of a type whose calls are plain HTTP.
type place struct {
	url    string // for the operator's endpoint
	fields object
	wrong  object // fields with which verify fails
	secret string // the credential
	get    func(name string) (string, bool)
	put    func(name, value string)
	calls  func() []string
}

// newPlainPlaces returns a place of each of these types.
func newPlainPlaces(t *testing.T) map[string]place {
	t.Helper()
	cluster := kubernetestest.New(t)
	cluster.AddNamespace("shop")
	hook := webhooktest.New(t)
	lab := gitlabtest.New(t)
	lab.Add("projects", "acme/web")
	store := cloud1ssmtest.New(t, 50)
	id, key := store.Root()
	return map[string]place{
		"cloud1-ssm": {
			url:    store.URL,
			fields: object{"access_key_id": id, "secret_access_key": key, "region": store.Region},
			wrong:  object{"secret_access_key": strings.Repeat("x", 40)},
			secret: key,
			get:    store.Get,
			put:    store.Put,
			calls: func() (all []string) {
				for _, c := range store.Calls() {
					all = append(all, c.Action+" "+c.SecretID)
				}
				return all
			},
		},
		"gitlab": {
			url:    lab.URL,
			fields: object{"access_token": gitlabtest.Token, "project_id": "acme/web", "masked": false},
			wrong:  object{"project_id": "acme/none"},
			secret: gitlabtest.Token,
			get:    func(name string) (string, bool) { return lab.Value("projects/acme/web", name, "*") },
			put:    func(name, value string) { lab.Put("projects/acme/web", name, "*", value) },
			calls:  lab.Calls,
		},
		"kubernetes": {
			url:    cluster.URL,
			fields: object{"api_server": "https://cluster.example.com:6443", "token": kubernetestest.Token, "namespace": "shop"},
			wrong:  object{"namespace": "none"},
			secret: kubernetestest.Token,
			get:    func(name string) (string, bool) { return cluster.Value("shop", name) },
			put:    func(name, value string) { cluster.Put("shop", name, "value", value) },
			calls:  cluster.Calls,
		},
		"webhook": {
			url:    hook.URL,
			fields: object{"url": "https://hooks.example.com/coffer", "signing_key": webhooktest.Key, "headers": `{"Authorization":"` + webhooktest.Secret + `"}`},
			wrong:  object{"signing_key": "another-key-of-the-hook"},
			secret: webhooktest.Key,
			get:    hook.Get,
			put:    hook.Put,
			calls:  hook.Calls,
		},
	}
}
