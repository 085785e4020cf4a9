package snapshots

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// mask, written for a secret, keeps it. Reads leave secrets out.
const mask = "*****"

// Routes declares sys/storage/raft/snapshot-auto.
func (s *Scheduler) Routes(r *engines.Router) {
	const flags = engines.Sudo | engines.Active | engines.RootNamespace | engines.ClusterLocal
	const configs = "storage/raft/snapshot-auto/config"
	engines.On(r, engines.List, configs, "List the schedules of snapshots.", flags, s.list).Returns("keys: [string]")
	engines.On(r, engines.Read, configs+"/{name}", "Read a schedule of snapshots. Secrets are left out.", flags, s.read).
		Returns(`aws_access_key_id, aws_s3_bucket, aws_s3_disable_tls: boolean, aws_s3_enable_kms: boolean, aws_s3_endpoint,
			aws_s3_force_path_style: boolean, aws_s3_kms_key, aws_s3_region, aws_s3_server_side_encryption: boolean,
			file_prefix, interval: integer, local_max_space: integer, name, path_prefix,
			retain: integer, storage_type`)
	engines.On(r, engines.Update, configs+"/{name}", "Write a schedule of snapshots. Of one that exists, fields that are not given stay.", flags, s.write)
	engines.On(r, engines.Delete, configs+"/{name}", "Delete a schedule of snapshots. The snapshots stay.", flags, s.delete)
	engines.On(r, engines.Read, "storage/raft/snapshot-auto/status/{name}", "Tell how a schedule of snapshots is doing.", flags, s.readStatus).
		Returns(`consecutive_errors: integer, last_snapshot_bytes: integer, last_snapshot_end, last_snapshot_error, last_snapshot_start,
			last_snapshot_url, last_success, next_snapshot_start, snapshot_start, snapshot_url`)
}

type noInput struct{}

type nameInput struct {
	Name string `json:"name" max:"64" help:"Name of the schedule."`
}

type configInput struct {
	Name           string            `json:"name" max:"64" help:"Name of the schedule."`
	Interval       engines.Duration  `json:"interval" help:"Time between two snapshots, such as 24h; at least 1m."`
	Retain         int               `json:"retain" default:"1" help:"How many snapshots to keep."`
	PathPrefix     string            `json:"path_prefix" max:"512" help:"local: directory below the server's local_root; aws-s3: what the keys of objects begin with."`
	FilePrefix     string            `json:"file_prefix" default:"coffer-snapshot" max:"64" help:"What the names of files begin with."`
	StorageType    string            `json:"storage_type" max:"32" help:"Where snapshots go: local or aws-s3."`
	LocalMaxSpace  int64             `json:"local_max_space" help:"local: remove older snapshots beyond this number of bytes; 0 is no limit."`
	S3Bucket       string            `json:"aws_s3_bucket" max:"63" help:"Bucket."`
	S3Region       string            `json:"aws_s3_region" max:"32" help:"Region of the bucket."`
	S3Endpoint     string            `json:"aws_s3_endpoint" max:"512" help:"URL of an S3-compatible service; default: the cloud's."`
	S3DisableTLS   bool              `json:"aws_s3_disable_tls" help:"Use http with an endpoint that is given without a scheme."`
	S3PathStyle    bool              `json:"aws_s3_force_path_style" help:"Put the bucket into the path, as many compatible services want it."`
	S3KMS          bool              `json:"aws_s3_enable_kms" help:"Let the bucket encrypt objects with the key service."`
	S3KMSKey       string            `json:"aws_s3_kms_key" max:"2048" help:"Key of the key service; default: the bucket's."`
	S3SSE          bool              `json:"aws_s3_server_side_encryption" help:"Let the bucket encrypt objects with its own keys."`
	AccessKeyID    string            `json:"aws_access_key_id" max:"256" help:"Access key; default: the identity of the node."`
	SecretKey      engines.Sensitive `json:"aws_secret_access_key" max:"1024" help:"Secret of the access key."`
	SessionToken   engines.Sensitive `json:"aws_session_token" max:"8192" help:"Session token of a temporary access key."`
	Autoload       bool              `json:"autoload_enabled" help:"Not supported."`
	GoogleBucket   string            `json:"google_gcs_bucket" max:"256" help:"Not supported."`
	AzureContainer string            `json:"azure_container_name" max:"256" help:"Not supported."`
}

// onto puts the fields that were given into c.
func (in *configInput) onto(c *config, given func(string) bool) {
	endpoint := in.S3Endpoint
	if endpoint != "" && !strings.Contains(endpoint, "://") {
		scheme := "https://"
		if in.S3DisableTLS {
			scheme = "http://"
		}
		endpoint = scheme + endpoint
	}
	for name, set := range map[string]func(){
		"interval":                      func() { c.Interval = time.Duration(in.Interval) },
		"retain":                        func() { c.Retain = in.Retain },
		"path_prefix":                   func() { c.PathPrefix, c.GivenPrefix = in.PathPrefix, in.PathPrefix },
		"file_prefix":                   func() { c.FilePrefix = in.FilePrefix },
		"storage_type":                  func() { c.StorageType = in.StorageType },
		"local_max_space":               func() { c.LocalMaxSpace = in.LocalMaxSpace },
		"aws_s3_bucket":                 func() { c.S3.Bucket = in.S3Bucket },
		"aws_s3_region":                 func() { c.S3.Region = in.S3Region },
		"aws_s3_endpoint":               func() { c.S3.Endpoint = endpoint },
		"aws_s3_force_path_style":       func() { c.S3.PathStyle = in.S3PathStyle },
		"aws_s3_enable_kms":             func() { c.S3.KMS = in.S3KMS },
		"aws_s3_kms_key":                func() { c.S3.KMSKey = in.S3KMSKey },
		"aws_s3_server_side_encryption": func() { c.S3.SSE = in.S3SSE },
		"aws_access_key_id":             func() { c.S3.AccessKeyID = in.AccessKeyID },
		"aws_secret_access_key":         func() { keepMasked(&c.S3.SecretKey, in.SecretKey) },
		"aws_session_token":             func() { keepMasked(&c.S3.Session, in.SessionToken) },
	} {
		if given(name) {
			set()
		}
	}
}

func keepMasked(into *string, given engines.Sensitive) {
	if given != mask {
		*into = strings.TrimSpace(given.Reveal()) // a file it came from may end with a newline
	}
}

func (s *Scheduler) list(ctx context.Context, _ *engines.Request, _ *noInput) (*engines.Response, error) {
	return engines.Listed(s.opts.Store.List(ctx, configPrefix, "", 0))
}

// find returns the schedule, or a 404.
func (s *Scheduler) find(ctx context.Context, name string) (*config, error) {
	c, err := s.config(ctx, s.opts.Store, name)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, engines.NotFound("")
	}
	return c, err
}

func (s *Scheduler) read(ctx context.Context, _ *engines.Request, in *nameInput) (*engines.Response, error) {
	c, err := s.find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	out := map[string]any{
		"name": c.Name, "interval": int64(c.Interval / time.Second), "retain": c.Retain, "storage_type": c.StorageType,
		"path_prefix": cmp.Or(c.GivenPrefix, c.PathPrefix), "file_prefix": c.FilePrefix,
	}
	if c.StorageType == typeLocal {
		out["local_max_space"] = c.LocalMaxSpace
		return &engines.Response{Data: out}, nil
	}
	for name, value := range map[string]any{
		"aws_s3_bucket": c.S3.Bucket, "aws_s3_region": c.S3.Region, "aws_s3_endpoint": c.S3.Endpoint,
		"aws_s3_disable_tls": strings.HasPrefix(c.S3.Endpoint, "http://"), "aws_s3_force_path_style": c.S3.PathStyle,
		"aws_s3_enable_kms": c.S3.KMS, "aws_s3_kms_key": c.S3.KMSKey, "aws_s3_server_side_encryption": c.S3.SSE,
		"aws_access_key_id": c.S3.AccessKeyID,
	} {
		out[name] = value
	}
	return &engines.Response{Data: out}, nil
}

func (s *Scheduler) write(ctx context.Context, req *engines.Request, in *configInput) (*engines.Response, error) {
	switch {
	case !validName(in.Name):
		return nil, engines.Invalid("the name of a schedule must be 1 to 64 letters, digits, \".\", \"_\" or \"-\"")
	case in.Autoload:
		return nil, engines.Invalid("field \"autoload_enabled\" is not supported: restore with storage/raft/snapshot")
	}
	_, err := storage.Update(ctx, s.opts.Store, func(t *storage.Txn) error {
		c, err := s.config(ctx, t, in.Name)
		switch {
		case errors.Is(err, storage.ErrNotFound):
			c = &config{Name: in.Name, Retain: in.Retain, FilePrefix: in.FilePrefix}
		case err != nil:
			return err
		default:
			t.Delete(c.placeKey())
		}
		in.onto(c, req.Given)
		if err := c.validate(s.opts.LocalRoot); err != nil {
			return err
		}
		c.Format, c.Updated = 1, time.Now().UTC()
		return put(ctx, t, c)
	})
	return nil, err
}

// put stores a schedule, unless another one has its place.
func put(ctx context.Context, t *storage.Txn, c *config) error {
	switch e, err := t.Get(ctx, c.placeKey()); {
	case err == nil && string(e.Value) != c.Name:
		return engines.Invalid("schedule %q keeps files of the same name in the same place: choose another \"path_prefix\" or \"file_prefix\"", e.Value)
	case err != nil && !errors.Is(err, storage.ErrNotFound):
		return err
	}
	value, err := json.Marshal(c)
	if err != nil {
		return err
	}
	t.Put(c.placeKey(), []byte(c.Name))
	t.Put(configPrefix+storage.Key(c.Name), value)
	return nil
}

func (s *Scheduler) delete(ctx context.Context, _ *engines.Request, in *nameInput) (*engines.Response, error) {
	_, err := storage.Update(ctx, s.opts.Store, func(t *storage.Txn) error {
		c, err := s.config(ctx, t, in.Name)
		if errors.Is(err, storage.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		t.Delete(c.placeKey())
		t.Delete(configPrefix + storage.Key(in.Name))
		t.Delete(statusPrefix + storage.Key(in.Name))
		return nil
	})
	return nil, err
}

func (s *Scheduler) readStatus(ctx context.Context, _ *engines.Request, in *nameInput) (*engines.Response, error) {
	c, err := s.find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	st, err := s.status(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	out := map[string]any{
		"last_snapshot_start": timeText(st.LastStart), "last_snapshot_end": timeText(st.LastEnd), "last_snapshot_error": st.LastError,
		"last_snapshot_url": st.LastURL, "last_snapshot_bytes": st.LastBytes, "last_success": timeText(st.LastSuccess),
		"consecutive_errors": st.Errors, "next_snapshot_start": timeText(st.next(c, time.Now())), "snapshot_start": "", "snapshot_url": "",
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == in.Name {
		out["snapshot_start"], out["snapshot_url"] = timeText(s.since), path.Join(c.PathPrefix, c.fileName(s.since))
	}
	return &engines.Response{Data: out}, nil
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
