package snapshots

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/archive"
	"github.com/coffer-project/coffer/storage"
)

// source writes snapshots, of which some fail or are damaged.
type source struct {
	state []byte

	mu     sync.Mutex
	n      int
	fail   error
	damage bool
}

// set says how the next snapshots will be.
func (s *source) set(fail error, damage bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail, s.damage = fail, damage
}

// count returns how many were asked for.
func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func (s *source) WriteSnapshot(ctx context.Context, w io.Writer) error {
	s.mu.Lock()
	s.n++
	fail, damage := s.fail, s.damage
	s.mu.Unlock()
	if fail != nil {
		io.WriteString(w, "half of one")
		return fail
	}
	state := s.state
	if state == nil {
		state = []byte("state")
	}
	var b bytes.Buffer
	err := archive.Write(ctx, &b, archive.Meta{ClusterID: "c", Created: time.Now()},
		func(w io.Writer) error { _, err := w.Write(state); return err },
		func(sums []byte) ([]byte, error) { return sums, nil })
	if err != nil {
		return err
	}
	if damage {
		b.Bytes()[b.Len()/2] ^= 1
	}
	_, err = w.Write(b.Bytes())
	return err
}

type fixture struct {
	*Scheduler
	store  *storage.Memory
	source *source
	root   string
	router *engines.Router
	t      *testing.T
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{store: &storage.Memory{}, source: &source{}, root: t.TempDir(), router: engines.NewRouter(), t: t}
	f.Scheduler = New(Options{Store: f.store, Source: f.source, LocalRoot: f.root, TempDir: t.TempDir()})
	f.store.OnChange(f.Changed)
	f.Routes(f.router)
	return f
}

func (f *fixture) ask(op engines.Operation, path, body string) (map[string]any, error) {
	f.t.Helper()
	req := &engines.Request{Op: op, Path: "storage/raft/snapshot-auto/" + path}
	if body != "" {
		req.Body = json.RawMessage(body)
	}
	resp, err := f.router.Handle(f.t.Context(), req)
	if err != nil || resp == nil {
		return nil, err
	}
	data, _ := resp.Data.(map[string]any)
	return data, nil
}

func (f *fixture) must(op engines.Operation, path, body string) map[string]any {
	f.t.Helper()
	data, err := f.ask(op, path, body)
	if err != nil {
		f.t.Fatalf("%s %s %s: %v", op, path, body, err)
	}
	return data
}

func (f *fixture) files(dir string) []string {
	f.t.Helper()
	entries, err := os.ReadDir(filepath.Join(f.root, dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestScheduleRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { f.Run(ctx); close(done) }()
		defer func() { cancel(); <-done }()
		synctest.Wait()
		if f.source.count() != 0 {
			t.Fatal("a snapshot was taken without a schedule")
		}
		f.must(engines.Update, "config/hourly", `{"interval":"1h","retain":3,"storage_type":"local","path_prefix":"a/b"}`)
		synctest.Wait()
		if got := f.files("a/b"); len(got) != 1 || !strings.HasPrefix(got[0], "coffer-snapshot-") {
			t.Fatalf("after the schedule was written there are %v, want the first snapshot", got)
		}
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if f.source.count() != 1 {
			t.Errorf("%d snapshots before the interval has passed", f.source.count())
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if f.source.count() != 2 {
			t.Errorf("%d snapshots after the interval, want 2", f.source.count())
		}
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		if got := f.files("a/b"); len(got) != 3 || f.source.count() != 12 {
			t.Errorf("after 12 snapshots (%d) there are %v, want the newest three", f.source.count(), got)
		}
		newest := f.files("a/b")

		// While it fails, what was kept stays, and it is tried again sooner than the interval.
		f.source.set(errors.New("the disk is full"), false)
		time.Sleep(61 * time.Minute)
		synctest.Wait()
		before := f.source.count()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if f.source.count() == before {
			t.Error("a snapshot that failed was not tried again")
		}
		if got := f.files("a/b"); strings.Join(got, " ") != strings.Join(newest, " ") {
			t.Errorf("after failures there are %v, want %v", got, newest)
		}
		status := f.must(engines.Read, "status/hourly", "")
		if n, _ := status["consecutive_errors"].(int); n < 2 || !strings.Contains(status["last_snapshot_error"].(string), "the disk is full") {
			t.Errorf("status = %v", status)
		}
		f.source.set(nil, true)
		time.Sleep(time.Hour)
		synctest.Wait()
		if status := f.must(engines.Read, "status/hourly", ""); !strings.Contains(status["last_snapshot_error"].(string), "verifying") {
			t.Errorf("with a damaged snapshot the status is %v", status)
		}
		if got := f.files("a/b"); strings.Join(got, " ") != strings.Join(newest, " ") {
			t.Errorf("after damaged snapshots there are %v, want %v", got, newest)
		}
		f.source.set(nil, false)
		time.Sleep(time.Hour)
		synctest.Wait()
		status = f.must(engines.Read, "status/hourly", "")
		if status["consecutive_errors"] != 0 || status["last_snapshot_error"] != "" || status["last_success"] == "" || status["next_snapshot_start"] == "" {
			t.Errorf("after it went well again the status is %v", status)
		}
		if n := f.Numbers(); n["snapshot_auto_taken_total"] < 13 || n["snapshot_auto_errors_total"] < 3 {
			t.Errorf("numbers = %v", n)
		}

		// A deleted schedule ends; its files stay.
		f.must(engines.Delete, "config/hourly", "")
		taken := f.source.count()
		time.Sleep(5 * time.Hour)
		synctest.Wait()
		if f.source.count() != taken || len(f.files("a/b")) != 3 {
			t.Errorf("after the schedule was deleted: %d snapshots more, files %v", f.source.count()-taken, f.files("a/b"))
		}
	})
}

// A node that becomes active goes on with what the one before it recorded.
func TestScheduleSurvivesFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		run := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { f.Run(ctx); close(done) }()
			synctest.Wait()
			return func() { cancel(); <-done }
		}
		f.must(engines.Update, "config/x", `{"interval":"1h","storage_type":"local"}`)
		stop := run()
		stop()
		time.Sleep(30 * time.Minute)
		stop = run()
		if f.source.count() != 1 {
			t.Errorf("the next active node took a snapshot at once: %d", f.source.count())
		}
		time.Sleep(31 * time.Minute)
		synctest.Wait()
		stop()
		if f.source.count() != 2 {
			t.Errorf("%d snapshots, want the second when it was due", f.source.count())
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	f := newFixture(t)
	const s3 = `"storage_type":"aws-s3","interval":"1h","aws_s3_region":"eu-central-1"`
	for _, tt := range []struct{ body, want string }{
		{`{}`, "interval"},
		{`{"interval":"10s","storage_type":"local"}`, "interval"},
		{`{"interval":"1h"}`, "storage_type"},
		{`{"interval":"1h","storage_type":"floppy"}`, "storage_type"},
		{`{"interval":"1h","storage_type":"google-gcs"}`, "not supported"},
		{`{"interval":"1h","storage_type":"azure-blob"}`, "not supported"},
		{`{"interval":"1h","storage_type":"local","retain":0}`, "retain"},
		{`{"interval":"1h","storage_type":"local","file_prefix":"../x"}`, "file_prefix"},
		{`{"interval":"1h","storage_type":"local","path_prefix":"../x"}`, "path_prefix"},
		{`{"interval":"1h","storage_type":"local","path_prefix":"a/../../x"}`, "path_prefix"},
		{`{"interval":"1h","storage_type":"local","path_prefix":"/etc"}`, "path_prefix"},
		{`{"interval":"1h","storage_type":"local","local_max_space":-1}`, "local_max_space"},
		{`{"interval":"1h","storage_type":"local","autoload_enabled":true}`, "autoload_enabled"},
		{`{` + s3 + `}`, "aws_s3_bucket"},
		{`{` + s3 + `,"aws_s3_bucket":"UPPER"}`, "aws_s3_bucket"},
		{`{` + s3 + `,"aws_s3_bucket":"bucket","aws_s3_region":"a b"}`, ""},
		{`{` + s3 + `,"aws_s3_bucket":"bucket","aws_access_key_id":"x"}`, "aws_secret_access_key"},
		{`{` + s3 + `,"aws_s3_bucket":"bucket","aws_session_token":"x"}`, "aws_session_token"},
		{`{` + s3 + `,"aws_s3_bucket":"bucket","aws_s3_endpoint":"ftp://x"}`, "aws_s3_endpoint"},
		{`{` + s3 + `,"aws_s3_bucket":"bucket","aws_s3_endpoint":"https://u:p@x"}`, "aws_s3_endpoint"},
		{`{` + s3 + `,"aws_s3_bucket":"bucket","aws_s3_endpoint":"https://x/path"}`, "aws_s3_endpoint"},
		{`{` + s3 + `,"aws_s3_bucket":"bucket","path_prefix":"a/../b"}`, "path_prefix"},
		{`{` + s3 + `,"aws_s3_bucket":"bucket","aws_s3_kms_key":"k"}`, "aws_s3_enable_kms"},
	} {
		_, err := f.ask(engines.Update, "config/x", tt.body)
		var e *engines.Error
		if !errors.As(err, &e) || e.Kind != engines.KindInvalid || !strings.Contains(e.Detail, tt.want) {
			t.Errorf("writing %s = %v, want a refusal that names %q", tt.body, err, tt.want)
		}
	}
	if _, err := f.ask(engines.Update, "config/a b", `{"interval":"1h","storage_type":"local"}`); err == nil {
		t.Error("a schedule with a blank in its name was accepted")
	}
	off := newFixture(t)
	off.opts.LocalRoot = ""
	if _, err := off.ask(engines.Update, "config/x", `{"interval":"1h","storage_type":"local"}`); err == nil || !strings.Contains(err.Error(), "local_root") {
		t.Errorf("without a root: %v", err)
	}
}

func TestConfigReadsBackWithoutSecrets(t *testing.T) {
	f := newFixture(t)
	f.must(engines.Update, "config/s3", `{"storage_type":"aws-s3","interval":3600,"retain":7,"aws_s3_bucket":"bucket","aws_s3_region":"eu-central-1",
		"aws_s3_endpoint":"minio:9000","aws_s3_disable_tls":true,"path_prefix":"/a/b/","aws_access_key_id":"id","aws_secret_access_key":"very secret","aws_session_token":"also secret"}`)
	data := f.must(engines.Read, "config/s3", "")
	for name, want := range map[string]any{
		"interval": int64(3600), "retain": 7, "path_prefix": "/a/b/", "aws_s3_endpoint": "http://minio:9000", "aws_s3_disable_tls": true,
		"aws_access_key_id": "id", "aws_secret_access_key": nil, "aws_session_token": nil, "file_prefix": "coffer-snapshot",
	} {
		if data[name] != want {
			t.Errorf("%s = %v, want %v", name, data[name], want)
		}
	}
	// What is read can be written back, and what is not given stays.
	f.must(engines.Update, "config/s3", `{"aws_secret_access_key":"*****","retain":8}`)
	c, err := f.config(t.Context(), f.store, "s3")
	if err != nil || c.S3.SecretKey != "very secret" || c.S3.Session != "also secret" || c.Retain != 8 || c.Interval != time.Hour {
		t.Errorf("after a partial update: retain %d, %v; the secrets must stay", c.Retain, err)
	}
	if got := f.must(engines.List, "config", ""); len(got["keys"].([]string)) != 1 {
		t.Errorf("list = %v", got)
	}
	for _, path := range []string{"config/none", "status/none"} {
		var e *engines.Error
		if _, err := f.ask(engines.Read, path, ""); !errors.As(err, &e) || e.Kind != engines.KindNotFound {
			t.Errorf("%s = %v, want not found", path, err)
		}
	}
	f.must(engines.Delete, "config/s3", "")
	f.must(engines.Delete, "config/s3", "")
	if entries, err := f.store.Scan(t.Context(), "", "", 0); err != nil || len(entries) != 0 {
		t.Errorf("after delete there are %d entries, %v", len(entries), err)
	}
}

// Two schedules that keep the same files in the same place would remove each other's.
func TestSchedulesDoNotSharePlaces(t *testing.T) {
	f := newFixture(t)
	f.must(engines.Update, "config/a", `{"interval":"1h","storage_type":"local","path_prefix":"p"}`)
	if _, err := f.ask(engines.Update, "config/b", `{"interval":"2h","storage_type":"local","path_prefix":"p/../p/"}`); err == nil || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("the same place was given to a second schedule: %v", err)
	}
	f.must(engines.Update, "config/b", `{"interval":"2h","storage_type":"local","path_prefix":"p","file_prefix":"other"}`)
	f.must(engines.Update, "config/a", `{"path_prefix":"q"}`)
	f.must(engines.Update, "config/c", `{"interval":"2h","storage_type":"local","path_prefix":"p"}`)
}
