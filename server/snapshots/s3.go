package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// Sizes of uploads. What is larger than onePutBytes goes in parts, of which there can be 10,000.
const (
	onePutBytes = 64 << 20
	partBytes   = 32 << 20
	maxParts    = 9000
)

// abortTime is how long the bucket may take to drop the parts of an upload that failed.
const abortTime = 5 * time.Second

// bucket is a prefix in an S3 bucket.
type bucket struct {
	client  *s3.Client
	config  s3Config
	prefix  string // of keys, "" or without a slash at its end
	files   string // what names begin with
	own     *regexp.Regexp
	retain  int
	tempDir string
	// For tests; onePutBytes and abortTime.
	onePut    int64
	abortTime time.Duration
}

func newBucket(ctx context.Context, tempDir string, c *config) (*bucket, error) {
	var load []func(*awsconfig.LoadOptions) error
	load = append(load, awsconfig.WithRegion(c.S3.Region))
	if c.S3.AccessKeyID != "" { // they come before all that the node has
		load = append(load, awsconfig.WithCredentialsProvider(credentials.NewStaticCredentialsProvider(c.S3.AccessKeyID, c.S3.SecretKey, c.S3.Session)))
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, load...)
	if missing, ok := errors.AsType[awsconfig.SharedConfigProfileNotExistError](err); ok {
		return nil, fmt.Errorf("the environment of this node names the AWS profile %q, which its shared files do not have: correct or unset AWS_PROFILE", missing.Profile)
	}
	if err != nil {
		return nil, fmt.Errorf("configuring the S3 client: %w", err)
	}
	client := s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.UsePathStyle = c.S3.PathStyle
		if c.S3.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.S3.Endpoint)
			// Compatible services often do not know the newer checksums; the signature covers the content.
			o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
			o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		}
	})
	return &bucket{
		client: client, config: c.S3, prefix: c.PathPrefix, files: c.FilePrefix, own: c.own(), retain: c.Retain,
		tempDir: tempDir, onePut: onePutBytes, abortTime: abortTime,
	}, nil
}

// Put implements place. The snapshot is complete and verified on this node's disk before the first byte is sent,
// and an object in a bucket is there completely or not at all.
func (b *bucket) Put(ctx context.Context, name string, write func(io.Writer) error) (_ file, err error) {
	f, err := os.CreateTemp(b.tempDir, tempPattern+"*.tmp")
	if err != nil {
		return file{}, fmt.Errorf("creating the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	bytes, err := verified(f, write)
	if err != nil {
		return file{}, err
	}
	key := path.Join(b.prefix, name)
	if bytes <= b.onePut {
		err = b.putWhole(ctx, key, io.NewSectionReader(f, 0, bytes))
	} else {
		err = b.putParts(ctx, key, f, bytes)
	}
	if err != nil {
		return file{}, fmt.Errorf("uploading the snapshot: %w", cause(err))
	}
	return file{url: "s3://" + b.config.Bucket + "/" + key, bytes: bytes}, nil
}

// encryption says how the bucket shall encrypt.
func (b *bucket) encryption() (how types.ServerSideEncryption, key *string) {
	switch {
	case b.config.KMS && b.config.KMSKey != "":
		return types.ServerSideEncryptionAwsKms, aws.String(b.config.KMSKey)
	case b.config.KMS:
		return types.ServerSideEncryptionAwsKms, nil
	case b.config.SSE:
		return types.ServerSideEncryptionAes256, nil
	}
	return "", nil
}

func (b *bucket) putWhole(ctx context.Context, key string, body io.ReadSeeker) error {
	how, kmsKey := b.encryption()
	_, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.config.Bucket, Key: &key, Body: body, ContentType: aws.String("application/gzip"),
		ServerSideEncryption: how, SSEKMSKeyId: kmsKey,
	})
	return err
}

// putParts uploads in parts. If it fails, the bucket is told to drop them.
func (b *bucket) putParts(ctx context.Context, key string, f io.ReaderAt, size int64) error {
	how, kmsKey := b.encryption()
	begun, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &b.config.Bucket, Key: &key, ContentType: aws.String("application/gzip"),
		ServerSideEncryption: how, SSEKMSKeyId: kmsKey,
	})
	if err != nil {
		return err
	}
	parts, err := b.sendParts(ctx, key, begun.UploadId, f, size)
	if err == nil {
		_, err = b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
			Bucket: &b.config.Bucket, Key: &key, UploadId: begun.UploadId,
			MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
		})
	}
	if err == nil {
		return nil
	}
	// A service that hangs must not keep the node from sealing: it waits for this.
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.abortTime)
	defer cancel()
	_, abort := b.client.AbortMultipartUpload(limited, &s3.AbortMultipartUploadInput{
		Bucket: &b.config.Bucket, Key: &key, UploadId: begun.UploadId,
	})
	return errors.Join(err, abort)
}

func (b *bucket) sendParts(ctx context.Context, key string, upload *string, f io.ReaderAt, size int64) ([]types.CompletedPart, error) {
	each := min(int64(partBytes), b.onePut)
	each = max(each, (size+maxParts-1)/maxParts)
	var parts []types.CompletedPart
	for from := int64(0); from < size; from += each {
		n := aws.Int32(int32(len(parts) + 1)) //nolint:gosec // at most maxParts
		part, err := b.client.UploadPart(ctx, &s3.UploadPartInput{
			Bucket: &b.config.Bucket, Key: &key, UploadId: upload, PartNumber: n,
			Body: io.NewSectionReader(f, from, min(each, size-from)),
		})
		if err != nil {
			return nil, err
		}
		parts = append(parts, types.CompletedPart{ETag: part.ETag, PartNumber: n, ChecksumCRC32: part.ChecksumCRC32})
	}
	return parts, nil
}

// Prune implements place. It lists the schedule's own prefix, and deletes nothing but files named as it names them.
func (b *bucket) Prune(ctx context.Context, taken string) error {
	pages := s3.NewListObjectsV2Paginator(b.client, &s3.ListObjectsV2Input{
		Bucket: &b.config.Bucket, Prefix: aws.String(path.Join(b.prefix, b.files) + "-"),
	})
	var keys []string
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("listing snapshots: %w", cause(err))
		}
		for _, o := range page.Contents {
			key := aws.ToString(o.Key)
			if name := path.Base(key); path.Join(b.prefix, name) == key && b.own.MatchString(name) {
				keys = append(keys, key)
			}
		}
	}
	taken = path.Join(b.prefix, taken)
	for i, key := range newestFirst(keys, taken) {
		if key == taken || i < b.retain {
			continue
		}
		if _, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.config.Bucket, Key: &key}); err != nil {
			return fmt.Errorf("removing a snapshot: %w", cause(err))
		}
	}
	return nil
}

// cause keeps what the service says, and leaves out what the client adds about its requests.
func cause(err error) error {
	var answer smithy.APIError
	if errors.As(err, &answer) {
		return fmt.Errorf("the service answers %s: %s", answer.ErrorCode(), answer.ErrorMessage())
	}
	return err
}
