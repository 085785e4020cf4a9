// Package awskms is the seal whose key AWS KMS keeps. Start reading at New.
package awskms

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"

	"github.com/coffer-project/coffer/server/seal"
)

// contextKey is the name under which the purpose is in the encryption context, and so in CloudTrail.
const contextKey = "coffer-purpose"

// client is a seal.KMS.
type client struct {
	kms *kms.Client
	key string // id, ARN or alias
}

// New returns the seal from its stanza: region, kms_key_id, endpoint, access_key, secret_key, session_token. Without
// keys in the stanza the SDK's default chain finds credentials: environment, shared files, web identity, the
// instance's or container's role. It makes no call yet.
func New(values map[string]string) (seal.Wrapper, error) {
	s := seal.NewSettings(seal.TypeAWSKMS, values)
	region := s.Required("region", "AWS_REGION", "AWS_DEFAULT_REGION")
	key := s.Required("kms_key_id", "VAULT_AWSKMS_SEAL_KEY_ID")
	endpoint := s.Text("endpoint", "AWS_KMS_ENDPOINT")
	access, secret, session := s.Secret("access_key"), s.Secret("secret_key"), s.Secret("session_token")
	if (access == "") != (secret == "") {
		s.Problem("access_key and secret_key must be set together, or neither")
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	options := []func(*config.LoadOptions) error{config.WithRegion(region)}
	if access != "" {
		options = append(options, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(access, secret, session)))
	}
	// It reads files and the environment; credentials are looked for when they are needed.
	c, err := config.LoadDefaultConfig(context.Background(), options...)
	if err != nil {
		return nil, fmt.Errorf("seal %q: %w", seal.TypeAWSKMS, err)
	}
	k := kms.NewFromConfig(c, func(o *kms.Options) {
		if endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
	})
	return seal.NewKMSWrapper(seal.TypeAWSKMS, region+"/"+key, &client{kms: k, key: key})
}

// Encrypt implements seal.KMS.
func (c *client) Encrypt(ctx context.Context, plain []byte, purpose string) ([]byte, error) {
	out, err := c.kms.Encrypt(ctx, &kms.EncryptInput{
		KeyId: &c.key, Plaintext: plain, EncryptionContext: map[string]string{contextKey: purpose},
	})
	if err != nil {
		return nil, err
	}
	return out.CiphertextBlob, nil
}

// Decrypt implements seal.KMS.
func (c *client) Decrypt(ctx context.Context, ciphertext []byte, purpose string) ([]byte, error) {
	out, err := c.kms.Decrypt(ctx, &kms.DecryptInput{
		KeyId: &c.key, CiphertextBlob: ciphertext, EncryptionContext: map[string]string{contextKey: purpose},
	})
	_, invalid := errors.AsType[*types.InvalidCiphertextException](err)
	_, other := errors.AsType[*types.IncorrectKeyException](err)
	if invalid || other {
		return nil, fmt.Errorf("%w: %w", seal.ErrWrongKey, err)
	}
	if err != nil {
		return nil, err
	}
	return out.Plaintext, nil
}
