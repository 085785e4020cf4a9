package gcpckms

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/coffer-project/coffer/server/seal"
)

// service is Cloud KMS with one key. It complains about requests that have no checksums.
type service struct {
	kmspb.UnimplementedKeyManagementServiceServer
	t       *testing.T
	mu      sync.Mutex
	kept    []*kmspb.EncryptRequest
	fail    error
	garbled bool // the answer's checksums are wrong
}

const key = "projects/p/locations/europe/keyRings/r/cryptoKeys/k"

func (s *service) check(name string, pairs ...any) error {
	if name != key {
		return status.Error(codes.NotFound, "no such key")
	}
	for i := 0; i < len(pairs); i += 2 {
		if want := int64(crc32.Checksum(pairs[i].([]byte), castagnoli)); pairs[i+1].(*wrapperspb.Int64Value).GetValue() != want {
			s.t.Errorf("checksum %d is wrong or missing", i/2)
		}
	}
	return s.fail
}

func (s *service) answerSum(b []byte) *wrapperspb.Int64Value {
	if s.garbled {
		return wrapperspb.Int64(1)
	}
	return sum(b)
}

func (s *service) Encrypt(_ context.Context, in *kmspb.EncryptRequest) (*kmspb.EncryptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(in.Name, in.Plaintext, in.PlaintextCrc32C, in.AdditionalAuthenticatedData, in.AdditionalAuthenticatedDataCrc32C); err != nil {
		return nil, err
	}
	s.kept = append(s.kept, in)
	blob := []byte{byte(len(s.kept) - 1)}
	return &kmspb.EncryptResponse{
		Name: key + "/cryptoKeyVersions/1", Ciphertext: blob, CiphertextCrc32C: s.answerSum(blob),
		VerifiedPlaintextCrc32C: true, VerifiedAdditionalAuthenticatedDataCrc32C: true,
	}, nil
}

func (s *service) Decrypt(_ context.Context, in *kmspb.DecryptRequest) (*kmspb.DecryptResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(in.Name, in.Ciphertext, in.CiphertextCrc32C, in.AdditionalAuthenticatedData, in.AdditionalAuthenticatedDataCrc32C); err != nil {
		return nil, err
	}
	if len(in.Ciphertext) != 1 || !bytes.Equal(s.kept[in.Ciphertext[0]].AdditionalAuthenticatedData, in.AdditionalAuthenticatedData) {
		return nil, status.Error(codes.InvalidArgument, "Decryption failed")
	}
	plain := s.kept[in.Ciphertext[0]].Plaintext
	return &kmspb.DecryptResponse{Plaintext: plain, PlaintextCrc32C: s.answerSum(plain)}, nil
}

// newService returns the service and how to reach it.
func newService(t *testing.T) (*service, func(context.Context) (*kms.KeyManagementClient, error)) {
	s := &service{t: t}
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	kmspb.RegisterKeyManagementServiceServer(server, s)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:kms", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return s, func(ctx context.Context) (*kms.KeyManagementClient, error) {
		return kms.NewKeyManagementClient(ctx, option.WithGRPCConn(conn))
	}
}

func TestWrap(t *testing.T) {
	s, dial := newService(t)
	w, err := newWrapper(key, dial)
	if err != nil {
		t.Fatal(err)
	}
	if w.Type() != "gcpckms" || seal.KeyID(w) != key {
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
	if kept := s.kept[0]; bytes.Equal(kept.Plaintext, secret) || string(kept.AdditionalAuthenticatedData) != "root key" {
		t.Errorf("the service gets the additional data %q", kept.AdditionalAuthenticatedData)
	}
	if _, err := w.Unwrap(t.Context(), blob, "another"); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("another purpose: %v", err)
	}
	s.fail = status.Error(codes.PermissionDenied, "not you")
	if _, err := w.Unwrap(t.Context(), blob, "root key"); err == nil || errors.Is(err, seal.ErrWrongKey) || !strings.Contains(err.Error(), "not you") {
		t.Errorf("a refusal: %v", err)
	}
	s.fail, s.garbled = nil, true
	_, err = w.Unwrap(t.Context(), blob, "root key")
	_, err2 := w.Wrap(t.Context(), secret, "root key")
	if !errors.Is(err, errChecksum) || !errors.Is(err2, errChecksum) {
		t.Errorf("garbled answers: %v, %v", err, err2)
	}
}

// Credentials that cannot be had now can be had later.
func TestCredentialsLater(t *testing.T) {
	_, dial := newService(t)
	ready := false
	w, err := newWrapper(key, func(ctx context.Context) (*kms.KeyManagementClient, error) {
		if !ready {
			return nil, errors.New("the metadata server is away")
		}
		return dial(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Wrap(t.Context(), []byte("x"), "p"); err == nil || !strings.Contains(err.Error(), "credentials: the metadata") {
		t.Errorf("without credentials: %v", err)
	}
	ready = true
	if _, err := w.Wrap(t.Context(), []byte("x"), "p"); err != nil {
		t.Errorf("with credentials: %v", err)
	}
}

func TestSettings(t *testing.T) {
	for _, name := range []string{"GOOGLE_CREDENTIALS", "GOOGLE_REGION", "VAULT_GCPCKMS_SEAL_KEY_RING", "VAULT_GCPCKMS_SEAL_CRYPTO_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("GOOGLE_PROJECT", "p")
	w, err := New(map[string]string{"region": "europe", "key_ring": "r", "crypto_key": "k"})
	if err != nil || seal.KeyID(w) != key {
		t.Errorf("New = %v", err)
	}
	_, err = New(map[string]string{"credentials": filepath.Join(t.TempDir(), "gone"), "keyring": "x"})
	for _, want := range []string{"region must be set", "key_ring must be set", "crypto_key must be set", "credentials must name", `unknown setting "keyring"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
