package server_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/pipeline"
	"github.com/coffer-project/coffer/storage"
)

func TestNoUnrecordedAnswerWhileSealing(t *testing.T) {
	in := start(t)
	file := t.TempDir() + "/audit.log"
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"v"}}`)
	in.must(in.root, engines.Update, "sys/audit/file", `{"type":"file","options":{"file_path":"`+file+`"}}`)

	in.until(in.Node().Current, "the node does not catch up") // which asks for the index, too
	reading, goOn := make(chan struct{}), make(chan struct{})
	leaving, left := make(chan struct{}), make(chan struct{})
	in.state.hooks(func() { close(reading); <-goOn }, func() { close(leaving); <-left })
	type outcome struct {
		reply *pipeline.Reply
		err   error
	}
	answered := make(chan outcome, 1)
	go func() {
		reply, err := in.do(in.root, engines.Read, "secret/data/app", "")
		answered <- outcome{reply, err}
	}()
	<-reading
	sealed := make(chan error, 1)
	go func() { sealed <- in.Node().Seal(context.Background()) }()
	<-leaving // the audit devices are closed, the keys are still there
	close(goOn)
	if got := <-answered; got.err == nil {
		t.Errorf("a request met by sealing was answered with %v, and the audit log has nothing of it", got.reply.Data)
	} else if !errors.Is(got.err, storage.ErrSealed) {
		t.Errorf("a request met by sealing = %v, want ErrSealed", got.err)
	}
	close(left)
	if err := <-sealed; err != nil {
		t.Fatal(err)
	}
}

func TestSealingAnswersItsRequest(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/audit/file", `{"type":"file","options":{"file_path":"`+t.TempDir()+`/a.log"}}`)
	in.must(in.root, engines.Update, "sys/seal", "")
	if !in.Sealed() {
		t.Error("not sealed")
	}
}

// policy tables: what a token with one policy may not do by another spelling of the same path.
func TestAnotherSpellingIsNoWayRound(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/policies/acl/admin", `{"policy":"path \"secret/*\" { capabilities = [\"read\"] }"}`)
	in.must(in.root, engines.Update, "sys/policies/acl/author", `{"policy":"path \"sys/policies/acl/*\" { capabilities = [\"create\",\"read\",\"update\",\"delete\"] }\npath \"sys/policies/acl/Admin\" { capabilities = [\"deny\"] }"}`)
	author := in.token("author")
	in.must(author, engines.Update, "sys/policies/acl/Other", `{"policy":"path \"x\" { capabilities = [\"read\"] }"}`)
	for _, name := range []string{"admin", "Admin", "ADMIN", " admin", "admin ", "ad\u004din"} {
		_, err := in.do(author, engines.Update, "sys/policies/acl/"+name, `{"policy":"path \"*\" { capabilities = [\"sudo\"] }"}`)
		if kind(err) != engines.KindDenied {
			t.Errorf("writing policy %q = %v, want denied", name, err)
		}
		if _, err := in.do(author, engines.Delete, "sys/policies/acl/"+name, ""); kind(err) != engines.KindDenied {
			t.Errorf("deleting policy %q = %v, want denied", name, err)
		}
	}
}

func TestParametersInTheQuery(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"old"}}`)
	in.must(in.root, engines.Update, "secret/data/app", `{"data":{"k":"new"}}`)
	in.must(in.root, engines.Update, "sys/policies/acl/newest", `{"policy":"path \"secret/data/app\" { capabilities = [\"read\"] denied_parameters = { \"version\" = [] } }"}`)
	tok := in.token("newest")
	read := func(query url.Values) error {
		_, err := in.Requests().Handle(context.Background(), &pipeline.Request{
			ID: "r", Op: engines.Read, Path: "secret/data/app", Token: engines.Sensitive(tok), Header: http.Header{}, Query: query,
		})
		return err
	}
	if err := read(nil); err != nil {
		t.Fatal(err)
	}
	if err := read(url.Values{"version": {"1"}}); kind(err) != engines.KindDenied {
		t.Errorf("a denied parameter in the query = %v, want denied", err)
	}
}

func TestAuthMethodsNeedSudo(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/policies/acl/mounter", `{"policy":"path \"sys/mounts/*\" { capabilities = [\"create\",\"update\",\"delete\",\"read\"] }"}`)
	tok := in.token("mounter")
	in.must(tok, engines.Update, "sys/mounts/mine", `{"type":"kv"}`)
	if _, err := in.do(tok, engines.Update, "sys/mounts/auth/mine", `{"type":"userpass"}`); kind(err) != engines.KindInvalid {
		t.Errorf("an auth method through sys/mounts, without sudo = %v, want invalid", err)
	}
	if _, err := in.do(tok, engines.Update, "sys/auth/mine", `{"type":"userpass"}`); kind(err) != engines.KindDenied {
		t.Errorf("an auth method without sudo = %v, want denied", err)
	}
	in.must(in.root, engines.Update, "sys/auth/mine", `{"type":"userpass"}`)
}

func TestNoPolicyIsNotEveryPolicy(t *testing.T) {
	in := start(t)
	for _, body := range []string{`{"policies":[""]}`, `{"policies":""}`, `{"policies":[]}`} {
		auth := in.must(in.root, engines.Update, "auth/token/create", body).Auth
		if len(auth.Policies) != 1 || auth.Policies[0] != "default" {
			t.Errorf("%s makes a token with %q, want the default policy only", body, auth.Policies)
		}
	}
	if auth := in.must(in.root, engines.Update, "auth/token/create", `{}`).Auth; auth.Policies[0] != "root" {
		t.Errorf("without policies: %q", auth.Policies)
	}
}

func TestUnauthenticatedMountListing(t *testing.T) {
	in := start(t)
	in.must(in.root, engines.Update, "sys/mounts/secret/tune", `{"listing_visibility":"unauth","audit_non_hmac_request_keys":["k"]}`)
	secret := func(token string) map[string]any {
		all := data(t, in.must(token, engines.Read, "sys/internal/ui/mounts", ""))["secret"].(map[string]any)
		return all["secret/"].(map[string]any)
	}
	got := secret("")
	for name := range got {
		if name != "type" && name != "description" && name != "options" {
			t.Errorf("anybody may read %q of a mount", name)
		}
	}
	if got["type"] != "kv" || secret(in.root)["accessor"] == nil {
		t.Errorf("anybody sees %v", got)
	}
}

func TestAboutThisNode(t *testing.T) {
	in := start(t)
	in.until(in.Node().Current, "the node did not catch up")
	in.state.lead(false)
	in.until(func() bool { return !in.Active() }, "still active")
	// A standby answers for itself, whatever token comes along.
	r, err := in.do("hvs.unknown", engines.Read, "sys/health", "")
	if err != nil || r.Status != http.StatusTooManyRequests {
		t.Errorf("health of a standby, with a token it does not know = %v, %v, want 429", r, err)
	}
	for _, path := range []string{"sys/seal", "sys/unseal"} {
		if got, err := in.Requests().Place(context.Background(), &pipeline.Request{Op: engines.Update, Path: path}); err != nil || got != pipeline.Only {
			t.Errorf("Place(%s) = %v, %v, want Only: another node must not do it", path, got, err)
		}
	}
	if _, err := in.do("hvs.unknown", engines.Update, "sys/seal", ""); kind(err) != engines.KindDenied {
		t.Errorf("sealing a standby with an unknown token = %v, want denied", err)
	}
}

func TestReadsThatMustBeCurrent(t *testing.T) {
	in := start(t)
	in.until(in.Node().Current, "the node did not catch up")
	in.state.lead(false)
	in.until(func() bool { return !in.Active() }, "still active")
	asked := 0
	in.state.hooks(func() { asked++ }, nil)
	req := &pipeline.Request{ID: "r", Op: engines.Read, Path: "sys/mounts", Token: engines.Sensitive(in.root), Header: http.Header{}}
	if _, err := in.Requests().Handle(context.Background(), req); err != nil || asked != 0 {
		t.Errorf("a plain read on a standby: %v, asked the leader %d times, want 0", err, asked)
	}
	req.Current = true
	if _, err := in.Requests().Handle(context.Background(), req); err != nil || asked != 1 {
		t.Errorf("a read that must be current, on a standby: %v, asked the leader %d times, want 1", err, asked)
	}
}

func TestHealthCodes(t *testing.T) {
	in := start(t)
	for code, ok := range map[string]bool{"100": false, "101": false, "199": false, "200": true, "299": true, "599": true, "600": false} {
		_, err := in.Requests().Handle(context.Background(), &pipeline.Request{Op: engines.Read, Path: "sys/health", Query: url.Values{"activecode": {code}}})
		if ok != (err == nil) {
			t.Errorf("activecode=%s: %v", code, err)
		}
	}
}
