package awskms_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/coffer-project/coffer/server/seal"
	"github.com/coffer-project/coffer/server/seal/awskms"
)

// service is KMS with one key. It complains about requests that the real one would not take.
type service struct {
	t    *testing.T
	mu   sync.Mutex
	kept []request
	fail string // error type to answer
}

type request struct {
	KeyID             string `json:"KeyId"`
	Plaintext         string
	CiphertextBlob    string
	EncryptionContext map[string]string
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := r.Header
	if r.Method != http.MethodPost || r.URL.Path != "/" || h.Get("Content-Type") != "application/x-amz-json-1.1" {
		s.t.Errorf("%s %s with %s", r.Method, r.URL.Path, h.Get("Content-Type"))
	}
	if auth := h.Get("Authorization"); !strings.HasPrefix(auth, "AWS4-HMAC-SHA256 Credential=AKIDTEST/") ||
		!strings.Contains(auth, "/eu-west-1/kms/aws4_request") || h.Get("X-Amz-Date") == "" || h.Get("X-Amz-Security-Token") != "session" {
		s.t.Error("the request is not signed as it should be")
	}
	var in request
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		s.t.Errorf("%s: %v", h.Get("X-Amz-Target"), err)
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	fail := func(kind string) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"__type":%q,"message":"as the test wants it"}`, kind)
	}
	switch {
	case s.fail != "":
		fail(s.fail)
	case in.KeyID != "alias/coffer":
		fail("NotFoundException")
	case h.Get("X-Amz-Target") == "TrentService.Encrypt":
		s.kept = append(s.kept, in)
		blob := base64.StdEncoding.EncodeToString([]byte{byte(len(s.kept) - 1)})
		json.NewEncoder(w).Encode(map[string]string{"CiphertextBlob": blob, "KeyId": "arn:aws:kms:eu-west-1:1:key/k"})
	case h.Get("X-Amz-Target") == "TrentService.Decrypt":
		blob, err := base64.StdEncoding.DecodeString(in.CiphertextBlob)
		if err != nil || len(blob) != 1 || int(blob[0]) >= len(s.kept) || !maps.Equal(s.kept[blob[0]].EncryptionContext, in.EncryptionContext) {
			fail("InvalidCiphertextException")
			return
		}
		json.NewEncoder(w).Encode(map[string]string{"Plaintext": s.kept[blob[0]].Plaintext, "KeyId": "arn:aws:kms:eu-west-1:1:key/k"})
	default:
		s.t.Errorf("target %q", h.Get("X-Amz-Target"))
		fail("UnknownOperationException")
	}
}

func newService(t *testing.T) (*service, map[string]string) {
	// Nothing of the machine's own configuration counts.
	for _, name := range []string{"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} {
		t.Setenv(name, "/nonexistent")
	}
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "VAULT_AWSKMS_SEAL_KEY_ID", "AWS_KMS_ENDPOINT"} {
		t.Setenv(name, "")
	}
	s := &service{t: t}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return s, map[string]string{
		"region": "eu-west-1", "kms_key_id": "alias/coffer", "endpoint": h.URL,
		"access_key": "AKIDTEST", "secret_key": "secret", "session_token": "session",
	}
}

func mustNew(t *testing.T, values map[string]string) seal.Wrapper {
	t.Helper()
	w, err := awskms.New(values)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWrap(t *testing.T) {
	s, stanza := newService(t)
	w := mustNew(t, stanza)
	if w.Type() != "awskms" || seal.KeyID(w) != "eu-west-1/alias/coffer" {
		t.Errorf("type %q, key %q", w.Type(), seal.KeyID(w))
	}
	secret := bytes.Repeat([]byte{7}, 32)
	blob, err := w.Wrap(t.Context(), secret, "root key")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.Unwrap(t.Context(), blob, "root key"); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("Unwrap: %v", err)
	}
	if kept := s.kept[0]; kept.Plaintext == base64.StdEncoding.EncodeToString(secret) || !maps.Equal(kept.EncryptionContext, map[string]string{"coffer-purpose": "root key"}) {
		t.Errorf("the service gets the context %v", kept.EncryptionContext)
	}
	if _, err := w.Unwrap(t.Context(), blob, "another"); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("another purpose: %v", err)
	}
}

func TestFailures(t *testing.T) {
	s, stanza := newService(t)
	w := mustNew(t, stanza)
	blob, err := w.Wrap(t.Context(), []byte("x"), "p")
	if err != nil {
		t.Fatal(err)
	}
	for kind, wrongKey := range map[string]bool{
		"IncorrectKeyException": true, "InvalidCiphertextException": true, "AccessDeniedException": false, "DisabledException": false,
	} {
		s.fail = kind
		_, err := w.Unwrap(t.Context(), blob, "p")
		if err == nil || errors.Is(err, seal.ErrWrongKey) != wrongKey || !strings.Contains(err.Error(), kind) || !strings.Contains(err.Error(), "alias/coffer") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	s.fail = ""
	stanza["kms_key_id"] = "gone"
	if _, err := mustNew(t, stanza).Wrap(t.Context(), []byte("x"), "p"); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("a key that is not there: %v", err)
	}
}

func TestSettings(t *testing.T) {
	_, stanza := newService(t)
	t.Setenv("AWS_DEFAULT_REGION", "eu-north-1")
	t.Setenv("VAULT_AWSKMS_SEAL_KEY_ID", "k")
	if w := mustNew(t, nil); seal.KeyID(w) != "eu-north-1/k" {
		t.Errorf("from the environment: %q", seal.KeyID(w))
	}
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("VAULT_AWSKMS_SEAL_KEY_ID", "")
	_, err := awskms.New(map[string]string{"access_key": "do-not-show", "key": "x"})
	for _, want := range []string{"region must be set", "kms_key_id must be set", "access_key and secret_key", `unknown setting "key"`} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "do-not-show") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	stanza["secret_key"] = "env://COFFER_TEST_NOT_SET"
	if _, err := awskms.New(stanza); err == nil || !strings.Contains(err.Error(), "secret_key: the environment variable") {
		t.Errorf("a secret that is not there: %v", err)
	}
}
