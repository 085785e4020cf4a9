package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// Where schedules, their status and the guard of their places are kept.
var (
	configPrefix = storage.NewKey(storage.Local, "sys", "root/snapshot-auto/config/")
	statusPrefix = storage.NewKey(storage.Local, "sys", "root/snapshot-auto/status/")
	placePrefix  = storage.NewKey(storage.Local, "sys", "root/snapshot-auto/place/")
)

// Storage types.
const (
	typeLocal = "local"
	typeS3    = "aws-s3"
)

const (
	minInterval = time.Minute
	maxInterval = 365 * 24 * time.Hour
	maxRetain   = 10000
)

// config is one schedule, as stored.
type config struct {
	Format        int           `json:"format"` // 1
	Interval      time.Duration `json:"interval"`
	Retain        int           `json:"retain"`
	StorageType   string        `json:"storage_type"`
	PathPrefix    string        `json:"path_prefix"`
	GivenPrefix   string        `json:"given_path_prefix,omitempty"` // as it was written, and is read
	FilePrefix    string        `json:"file_prefix"`
	LocalMaxSpace int64         `json:"local_max_space,omitempty"` // bytes; 0: no limit
	S3            s3Config      `json:"s3"`
	Updated       time.Time     `json:"updated"`

	Name string `json:"-"`
}

// s3Config says which bucket, and how to get in. Without an access key it is the node's own identity.
type s3Config struct {
	Bucket      string `json:"bucket,omitempty"`
	Region      string `json:"region,omitempty"`
	Endpoint    string `json:"endpoint,omitempty"` // URL; "": the cloud's
	AccessKeyID string `json:"access_key_id,omitempty"`
	SecretKey   string `json:"secret_key,omitempty"`
	Session     string `json:"session_token,omitempty"`
	PathStyle   bool   `json:"path_style,omitempty"`
	SSE         bool   `json:"sse,omitempty"` // encrypted by S3's own keys
	KMS         bool   `json:"kms,omitempty"` // encrypted by the key service
	KMSKey      string `json:"kms_key,omitempty"`
}

// GoString keeps the secrets out of messages.
func (s3Config) GoString() string { return "s3Config" }

// String is GoString.
func (s3Config) String() string { return "s3Config" }

func decodeConfig(e storage.Entry) (*config, error) {
	c := &config{Name: string(e.Key[len(configPrefix):])}
	if err := json.Unmarshal(e.Value, c); err != nil {
		return nil, fmt.Errorf("decoding a schedule of snapshots: %w", err)
	}
	if c.Format != 1 {
		return nil, fmt.Errorf("a schedule of snapshots has format %d, this build knows 1", c.Format)
	}
	return c, nil
}

// configs returns all schedules, by name.
func (s *Scheduler) configs(ctx context.Context) ([]*config, error) {
	entries, err := s.opts.Store.Scan(ctx, configPrefix, "", 0)
	if err != nil {
		return nil, err
	}
	all := make([]*config, len(entries))
	for i, e := range entries {
		if all[i], err = decodeConfig(e); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// config returns one schedule, or storage.ErrNotFound.
func (s *Scheduler) config(ctx context.Context, r interface {
	Get(context.Context, storage.Key) (storage.Entry, error)
}, name string) (*config, error) {
	e, err := r.Get(ctx, configPrefix+storage.Key(name))
	if err != nil {
		return nil, err
	}
	return decodeConfig(e)
}

// fileName is the name of a snapshot begun at now: names sort by age.
func (c *config) fileName(now time.Time) string {
	return fmt.Sprintf("%s-%019d.snap", c.FilePrefix, now.UnixNano())
}

// own returns a test for names of the schedule's files.
func (c *config) own() *regexp.Regexp {
	return regexp.MustCompile(`^` + regexp.QuoteMeta(c.FilePrefix) + `-[0-9]{19}\.snap$`)
}

// place names where the files are, so that no two schedules share one.
func (c *config) placeKey() storage.Key {
	where := []string{c.StorageType, c.S3.Endpoint, c.S3.Bucket, c.PathPrefix, c.FilePrefix}
	if c.StorageType == typeLocal {
		where = []string{c.StorageType, c.PathPrefix, c.FilePrefix}
	}
	return placePrefix + storage.Key(url.PathEscape(strings.Join(where, "|")))
}

// Lengths are checked apart: a counted repetition is unrolled when it is compiled, at each start of the program.
var (
	namePattern   = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	bucketPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]+[a-z0-9]$`)
	regionPattern = regexp.MustCompile(`^[a-z0-9-]+$`)
)

func validName(s string) bool { return len(s) <= 64 && namePattern.MatchString(s) }

// validate reports the first field that is wrong, and brings the paths into one form.
func (c *config) validate(localRoot string) error {
	switch {
	case c.Interval < minInterval || c.Interval > maxInterval:
		return engines.Invalid("field \"interval\" must be between %v and 8760h, such as \"24h\"", minInterval)
	case c.Retain < 1 || c.Retain > maxRetain:
		return engines.Invalid("field \"retain\" must be between 1 and %d", maxRetain)
	case !validName(c.FilePrefix):
		return engines.Invalid("field \"file_prefix\" must be 1 to 64 letters, digits, \".\", \"_\" or \"-\"")
	case len(c.PathPrefix) > 512 || strings.ContainsFunc(c.PathPrefix, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }):
		return engines.Invalid("field \"path_prefix\" must be at most 512 printable bytes")
	}
	switch c.StorageType {
	case typeLocal:
		return c.validateLocal(localRoot)
	case typeS3:
		return c.validateS3()
	case "google-gcs", "azure-blob":
		return engines.Invalid("storage_type %q is not supported: use \"aws-s3\" (which takes any S3-compatible endpoint) or \"local\"", c.StorageType)
	}
	return engines.Invalid("field \"storage_type\" must be \"local\" or \"aws-s3\"")
}

func (c *config) validateLocal(root string) error {
	if root == "" {
		return engines.Invalid("storage_type \"local\" is turned off: the operator must name a directory in the server's configuration, snapshots { local_root = \"…\" }")
	}
	dir := c.PathPrefix
	if path.IsAbs(dir) {
		rest, ok := strings.CutPrefix(path.Clean(dir)+"/", path.Clean(root)+"/")
		if !ok {
			return engines.Invalid("field \"path_prefix\" must be a directory below the local_root of the server's configuration, best given relative to it")
		}
		dir = rest
	}
	dir = path.Clean("./" + dir)
	if dir == ".." || strings.HasPrefix(dir, "../") {
		return engines.Invalid("field \"path_prefix\" must not leave the local_root of the server's configuration")
	}
	c.PathPrefix = dir
	if c.LocalMaxSpace < 0 {
		return engines.Invalid("field \"local_max_space\" must not be negative")
	}
	return nil
}

func (c *config) validateS3() error {
	prefix := strings.Trim(c.PathPrefix, "/")
	if prefix != "" && path.Clean(prefix) != prefix {
		return engines.Invalid("field \"path_prefix\" must not contain empty segments, \".\" or \"..\"")
	}
	c.PathPrefix = prefix
	s := &c.S3
	switch {
	case len(s.Bucket) > 63 || !bucketPattern.MatchString(s.Bucket):
		return engines.Invalid("field \"aws_s3_bucket\" must be the name of a bucket: 3 to 63 lower-case letters, digits, \".\" or \"-\"")
	case len(s.Region) > 32 || !regionPattern.MatchString(s.Region):
		return engines.Invalid("field \"aws_s3_region\" must be a region such as \"eu-central-1\"")
	case (s.AccessKeyID == "") != (s.SecretKey == ""):
		return engines.Invalid("fields \"aws_access_key_id\" and \"aws_secret_access_key\" must be given both, or neither to use the identity of the node")
	case s.Session != "" && s.AccessKeyID == "":
		return engines.Invalid("field \"aws_session_token\" needs \"aws_access_key_id\" and \"aws_secret_access_key\"")
	case s.KMS && s.SSE:
		return engines.Invalid("fields \"aws_s3_enable_kms\" and \"aws_s3_server_side_encryption\" exclude each other")
	case s.KMSKey != "" && !s.KMS:
		return engines.Invalid("field \"aws_s3_kms_key\" needs \"aws_s3_enable_kms\"")
	}
	if s.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(s.Endpoint)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || s.Endpoint != u.Scheme+"://"+u.Host {
		return engines.Invalid("field \"aws_s3_endpoint\" must be a URL such as https://s3.example.com, without a path")
	}
	if port := u.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return engines.Invalid("field \"aws_s3_endpoint\" has a port that is none")
		}
	}
	return nil
}

// clientText is what the status shows of an error.
func clientText(err error) string {
	var e *engines.Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}
