// Package gcpckms is the seal whose key Google Cloud KMS keeps. Start reading at New.
package gcpckms

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"sync"

	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/coffer-project/coffer/server/seal"
)

// client is a seal.KMS.
type client struct {
	key  string // full resource name
	dial func(context.Context) (*kms.KeyManagementClient, error)

	mu  sync.Mutex
	kms *kms.KeyManagementClient // nil until dial has succeeded
}

// New returns the seal from its stanza: project, region, key_ring, crypto_key, credentials (file of a service
// account; default: the application default credentials). It makes no call: the client is made at the first use.
func New(values map[string]string) (seal.Wrapper, error) {
	s := seal.NewSettings(seal.TypeGCPCKMS, values)
	key := fmt.Sprintf("projects/%s/locations/%s/keyRings/%s/cryptoKeys/%s",
		s.Required("project", "GOOGLE_PROJECT"), s.Required("region", "GOOGLE_REGION"),
		s.Required("key_ring", "VAULT_GCPCKMS_SEAL_KEY_RING"), s.Required("crypto_key", "VAULT_GCPCKMS_SEAL_CRYPTO_KEY"))
	file := strings.TrimPrefix(s.Text("credentials", "GOOGLE_CREDENTIALS"), "file://")
	if file != "" {
		if _, err := os.Stat(file); err != nil {
			s.Problem("credentials must name a readable file: %v", err)
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	return newWrapper(key, func(ctx context.Context) (*kms.KeyManagementClient, error) {
		var options []option.ClientOption
		if file != "" {
			options = append(options, option.WithAuthCredentialsFile(option.ServiceAccount, file))
		}
		return kms.NewKeyManagementClient(ctx, options...)
	})
}

func newWrapper(key string, dial func(context.Context) (*kms.KeyManagementClient, error)) (seal.Wrapper, error) {
	return seal.NewKMSWrapper(seal.TypeGCPCKMS, key, &client{key: key, dial: dial})
}

// client returns the client of the service. It lives as long as the process.
func (c *client) client(ctx context.Context) (*kms.KeyManagementClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kms == nil {
		k, err := c.dial(context.WithoutCancel(ctx))
		if err != nil {
			return nil, fmt.Errorf("credentials: %w", err)
		}
		c.kms = k
	}
	return c.kms, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum is the checksum by which either side notices what was changed on the way.
func sum(b []byte) *wrapperspb.Int64Value {
	return wrapperspb.Int64(int64(crc32.Checksum(b, castagnoli)))
}

var errChecksum = errors.New("the data was changed on the way to or from the service")

// Encrypt implements seal.KMS.
func (c *client) Encrypt(ctx context.Context, plain []byte, purpose string) ([]byte, error) {
	k, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	out, err := k.Encrypt(ctx, &kmspb.EncryptRequest{
		Name: c.key, Plaintext: plain, PlaintextCrc32C: sum(plain),
		AdditionalAuthenticatedData: []byte(purpose), AdditionalAuthenticatedDataCrc32C: sum([]byte(purpose)),
	})
	if err != nil {
		return nil, err
	}
	if !out.VerifiedPlaintextCrc32C || !out.VerifiedAdditionalAuthenticatedDataCrc32C || out.CiphertextCrc32C.GetValue() != sum(out.Ciphertext).Value {
		return nil, errChecksum
	}
	return out.Ciphertext, nil
}

// Decrypt implements seal.KMS.
func (c *client) Decrypt(ctx context.Context, ciphertext []byte, purpose string) ([]byte, error) {
	k, err := c.client(ctx)
	if err != nil {
		return nil, err
	}
	out, err := k.Decrypt(ctx, &kmspb.DecryptRequest{
		Name: c.key, Ciphertext: ciphertext, CiphertextCrc32C: sum(ciphertext),
		AdditionalAuthenticatedData: []byte(purpose), AdditionalAuthenticatedDataCrc32C: sum([]byte(purpose)),
	})
	if status.Code(err) == codes.InvalidArgument {
		return nil, fmt.Errorf("%w: %w", seal.ErrWrongKey, err)
	}
	if err != nil {
		return nil, err
	}
	if out.PlaintextCrc32C.GetValue() != sum(out.Plaintext).Value {
		return nil, errChecksum
	}
	return out.Plaintext, nil
}
