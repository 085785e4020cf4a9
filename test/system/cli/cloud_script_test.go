package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coffer-project/coffer/engines/cloud/awstest"
)

// cloudProviders are the cloud providers of scripts.
type cloudProviders struct{ t testing.TB }

// start is the command awstest: it starts a cloud provider with a user "billing", the groups "developers" and "readers",
// and the roles "readonly" and "deploy". AWSTEST is its URL, ROOT_KEY and ROOT_SECRET let in who may do everything,
// SIGNIN signs in to its console, and the command browser is the browser.
func (p *cloudProviders) start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: awstest")
	}
	s := awstest.New(p.t)
	key, secret := s.Root()
	s.AddUser("billing")
	s.AddGroup(awstest.Group{Name: "developers"})
	s.AddRole(awstest.Role{Name: "readonly"})
	s.AddRole(awstest.Role{Name: "deploy"})
	s.In("210987654321").AddRole(awstest.Role{Name: "gate"})
	s.In("210987654321").AddRole(awstest.Role{Name: "deploy"})
	signin := httptest.NewServer(http.HandlerFunc(signInToConsole))
	ts.Defer(signin.Close)
	for name, value := range map[string]string{
		"AWSTEST": s.URL, "ROOT_KEY": key, "ROOT_SECRET": secret, "SIGNIN": signin.URL, "BROWSER": "browser",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1", "NO_PROXY": "*",
	} {
		ts.Setenv(name, value)
	}
}

// signInToConsole takes temporary credentials for a token, and the token for a page.
func signInToConsole(w http.ResponseWriter, r *http.Request) {
	switch q := r.URL.Query(); q.Get("Action") {
	case "getSigninToken":
		var session struct{ SessionID, SessionKey, SessionToken string }
		if json.Unmarshal([]byte(q.Get("Session")), &session) != nil || session.SessionID == "" || session.SessionKey == "" || session.SessionToken == "" {
			http.Error(w, "", http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, `{"SigninToken":"of-`+session.SessionID+`"}`)
	case "login":
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "the console %s for %s", q.Get("Destination"), q.Get("SigninToken"))
	}
}

// playCaller is the program caller, of scripts: it asks the cloud provider at AWSTEST who it is, with the credentials that
// the vendor's SDK finds, and prints the answer.
func playCaller() {
	ctx := context.Background()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err == nil {
		client := sts.NewFromConfig(cfg, func(o *sts.Options) { o.BaseEndpoint = aws.String(os.Getenv("AWSTEST")) })
		var who *sts.GetCallerIdentityOutput
		if who, err = client.GetCallerIdentity(ctx, nil); err == nil {
			fmt.Println(*who.Arn)
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
