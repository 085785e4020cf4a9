package cli_test

import (
	"os"
	"testing"

	"github.com/coffer-project/coffer/engines/cert/certtest"
	"github.com/rogpeppe/go-internal/testscript"
)

// clientCert is the command client-cert NAME: it writes the certificate of a new CA to ca.pem, its list that revokes what it has issued
// to ca.crl, and a client's certificate with this common name and its key to client.pem and client.key.
func clientCert(t *testing.T) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 1 {
			ts.Fatalf("usage: client-cert NAME")
		}
		ca := certtest.New(t, "clients' ca")
		client := ca.Issue(args[0], nil)
		cert, key := client.Files(t, ts.MkAbs("."))
		ts.Check(os.Rename(cert, ts.MkAbs("client.pem")))
		ts.Check(os.Rename(key, ts.MkAbs("client.key")))
		ts.Check(os.WriteFile(ts.MkAbs("ca.pem"), []byte(ca.PEM()), 0o600))
		ts.Check(os.WriteFile(ts.MkAbs("ca.crl"), []byte(ca.Revoke(client)), 0o600))
	}
}
