package main

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/openbao/openbao/api/v2"
)

// autoSealed runs a server that unseals itself, not initialised, until the end of the test.
func autoSealed(t *testing.T) (url string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "coffer.hcl")
	config := `
listener "tcp" { address = "127.0.0.1:0" cluster_address = "127.0.0.1:0" tls_disable = true }
storage "raft" { path = "` + filepath.Join(dir, "data") + `" node_id = "n1" }
api_addr = "http://127.0.0.1:8200"
cluster_addr = "https://127.0.0.1:0"
seal "static" { current_key_id = "k" current_key = "` + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))) + `" }
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer w.Close()
		run(ctx, []string{"coffer", "server", "-config=" + file}, strings.NewReader(""), io.Discard, w)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	lines := bufio.NewScanner(r)
	for url == "" && lines.Scan() {
		if _, at, ok := strings.Cut(lines.Text(), "coffer: ready at "); ok {
			url = at
		}
	}
	go io.Copy(io.Discard, r)
	if url == "" {
		t.Fatal("the server did not become ready")
	}
	return url
}

// The clients of the family work with recovery keys: old names and new ones.
func TestRecoveryKeysWithClients(t *testing.T) {
	url := autoSealed(t)
	client, err := api.NewClient(&api.Config{Address: url})
	if err != nil {
		t.Fatal(err)
	}
	client.ClearToken()
	keys, err := client.Sys().Init(&api.InitRequest{RecoveryShares: 3, RecoveryThreshold: 2})
	if err != nil || len(keys.Keys) != 0 || len(keys.RecoveryKeys) != 3 || len(keys.RecoveryKeysB64) != 3 {
		t.Fatalf("Init: %v", err)
	}
	client.SetToken(keys.RootToken)
	seal, err := client.Sys().SealStatus()
	if err != nil || !seal.RecoverySeal || seal.N != 3 || seal.T != 2 || seal.Sealed || seal.Migration || seal.Type != "static" {
		t.Errorf("SealStatus = %+v, %v", seal, err)
	}
	if _, err := client.Sys().RekeyInit(&api.RekeyInitRequest{SecretShares: 2, SecretThreshold: 2}); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("a rekey of unseal keys: %v", err)
	}

	// Rekey, with the names of old and verification.
	begun, err := client.Sys().RekeyRecoveryKeyInit(&api.RekeyInitRequest{SecretShares: 1, SecretThreshold: 1, RequireVerification: true})
	if err != nil || !begun.Started || begun.Nonce == "" || begun.Required != 2 || !begun.VerificationRequired {
		t.Fatalf("RekeyRecoveryKeyInit = %+v, %v", begun, err)
	}
	if _, err := client.Sys().RekeyRecoveryKeyUpdate(keys.RecoveryKeys[0], begun.Nonce); err != nil {
		t.Fatal(err)
	}
	made, err := client.Sys().RekeyRecoveryKeyUpdate(keys.RecoveryKeysB64[2], begun.Nonce)
	if err != nil || !made.Complete || len(made.KeysB64) != 1 || made.VerificationNonce == "" {
		t.Fatalf("RekeyRecoveryKeyUpdate: complete %v, %v", made != nil && made.Complete, err)
	}
	verified, err := client.Sys().RekeyRecoveryKeyVerificationUpdate(made.KeysB64[0], made.VerificationNonce)
	if err != nil || !verified.Complete {
		t.Fatalf("RekeyRecoveryKeyVerificationUpdate = %+v, %v", verified, err)
	}

	// A root token.
	attempt, err := client.Sys().GenerateRootInit("", "")
	if err != nil || len(attempt.OTP) != attempt.OTPLength || attempt.Required != 1 {
		t.Fatalf("GenerateRootInit: %v", err)
	}
	done, err := client.Sys().GenerateRootUpdate(made.Keys[0], attempt.Nonce)
	if err != nil || !done.Complete {
		t.Fatalf("GenerateRootUpdate: %v", err)
	}
	hidden, err := base64.RawStdEncoding.DecodeString(done.EncodedRootToken)
	if err != nil {
		t.Fatal(err)
	}
	token := make([]byte, len(hidden))
	subtle.XORBytes(token, hidden, []byte(attempt.OTP))
	client.SetToken(string(token))
	if self, err := client.Auth().Token().LookupSelf(); err != nil || !strings.Contains(strings.Join(policiesOf(self), ","), "root") {
		t.Errorf("the generated token: %v", err)
	}

	// The names that want a token.
	other, err := api.NewClient(&api.Config{Address: url})
	if err != nil {
		t.Fatal(err)
	}
	other.ClearToken()
	if _, err := other.Sys().RotateRecoveryStatus(); command.StatusOf(err) != http.StatusForbidden {
		t.Errorf("without a token: %v", err)
	}
	if _, err := other.Sys().GenerateRootStatus(); command.StatusOf(err) != http.StatusForbidden {
		t.Errorf("without a token: %v", err)
	}
	other.SetToken(string(token))
	again, err := other.Sys().RotateRecoveryInit(&api.RotateInitRequest{SecretShares: 2, SecretThreshold: 2})
	if err != nil || !again.Started || again.Required != 1 {
		t.Fatalf("RotateRecoveryInit = %+v, %v", again, err)
	}
	if r, err := other.Sys().RotateRecoveryUpdate(made.Keys[0], again.Nonce); err != nil || !r.Complete || len(r.Keys) != 2 {
		t.Errorf("RotateRecoveryUpdate: %v", err)
	}
	if s, err := other.Sys().GenerateRootInit("", ""); err != nil || s.Required != 2 || s.OTP == "" {
		t.Errorf("GenerateRootInit: %v", err)
	}
	if err := other.Sys().GenerateRootCancel(); err != nil {
		t.Error(err)
	}
	if err := client.Sys().Rotate(); err != nil {
		t.Error(err)
	}
	if k, err := client.Sys().KeyStatus(); err != nil || k.Term != 2 {
		t.Errorf("KeyStatus = %+v, %v", k, err)
	}
}

func policiesOf(s *api.Secret) (names []string) {
	list, _ := s.Data["policies"].([]any)
	for _, p := range list {
		names = append(names, p.(string))
	}
	return names
}
