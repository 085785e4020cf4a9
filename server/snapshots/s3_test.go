package snapshots

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/archive"
)

// fakeS3 is a strict S3: it verifies signatures and content hashes, knows one bucket, and answers two keys in a page.
type fakeS3 struct {
	t       *testing.T
	secret  string
	deny    string // operation that is answered with AccessDenied
	mu      sync.Mutex
	objects map[string][]byte
	headers map[string]http.Header
	uploads map[string]map[int][]byte
	calls   []string
}

func newFakeS3(t *testing.T) (*fakeS3, string) {
	f := &fakeS3{t: t, secret: "the secret", objects: map[string][]byte{}, headers: map[string]http.Header{}, uploads: map[string]map[int][]byte{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL
}

func (f *fakeS3) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.fail(w, http.StatusBadRequest, "IncompleteBody")
		return
	}
	if why := f.signed(r, body); why != "" {
		f.t.Errorf("%s %s: %s", r.Method, r.URL, why)
		f.fail(w, http.StatusForbidden, "SignatureDoesNotMatch")
		return
	}
	key, ok := strings.CutPrefix(r.URL.Path, "/bucket/")
	if !ok && r.URL.Path != "/bucket" {
		f.fail(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handle(w, r, key, body)
}

func (f *fakeS3) handle(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	q := r.URL.Query()
	call := r.Method
	switch {
	case q.Has("uploads"):
		call = "create-upload"
	case q.Has("uploadId"):
		call = r.Method + "-upload"
	case q.Has("list-type"):
		call = "list"
	}
	f.calls = append(f.calls, call)
	if call == f.deny {
		f.fail(w, http.StatusForbidden, "AccessDenied")
		return
	}
	upload := f.uploads[q.Get("uploadId")]
	if q.Has("uploadId") && upload == nil {
		f.fail(w, http.StatusNotFound, "NoSuchUpload")
		return
	}
	switch call {
	case "PUT":
		f.objects[key], f.headers[key] = body, r.Header.Clone()
	case "DELETE":
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case "list":
		f.list(w, q)
	case "create-upload":
		f.uploads["id-1"] = map[int][]byte{}
		fmt.Fprint(w, `<InitiateMultipartUploadResult><UploadId>id-1</UploadId></InitiateMultipartUploadResult>`)
	case "PUT-upload":
		n, _ := strconv.Atoi(q.Get("partNumber"))
		upload[n] = body
		w.Header().Set("ETag", `"part-`+strconv.Itoa(n)+`"`)
	case "DELETE-upload":
		delete(f.uploads, "id-1")
		w.WriteHeader(http.StatusNoContent)
	case "POST-upload":
		f.complete(w, key, upload, body)
	default:
		f.fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

func (f *fakeS3) complete(w http.ResponseWriter, key string, upload map[int][]byte, body []byte) {
	var order struct {
		Part []struct {
			PartNumber int
			ETag       string
		}
	}
	if err := xml.Unmarshal(body, &order); err != nil || len(order.Part) != len(upload) {
		f.fail(w, http.StatusBadRequest, "InvalidPart")
		return
	}
	var all []byte
	for i, p := range order.Part {
		if p.PartNumber != i+1 || p.ETag != `"part-`+strconv.Itoa(i+1)+`"` {
			f.fail(w, http.StatusBadRequest, "InvalidPart")
			return
		}
		all = append(all, upload[p.PartNumber]...)
	}
	f.objects[key] = all
	delete(f.uploads, "id-1")
	fmt.Fprint(w, `<CompleteMultipartUploadResult></CompleteMultipartUploadResult>`)
}

func (f *fakeS3) list(w http.ResponseWriter, q url.Values) {
	type content struct{ Key string }
	var out struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []content
	}
	for _, key := range slices.Sorted(maps.Keys(f.objects)) {
		if !strings.HasPrefix(key, q.Get("prefix")) || key <= q.Get("continuation-token") {
			continue
		}
		if len(out.Contents) == 2 {
			out.IsTruncated, out.NextContinuationToken = true, out.Contents[1].Key
			break
		}
		out.Contents = append(out.Contents, content{key})
	}
	if err := xml.NewEncoder(w).Encode(out); err != nil {
		f.t.Error(err)
	}
}

func (f *fakeS3) fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `<Error><Code>%s</Code><Message>said the fake</Message></Error>`, code)
}

// signed verifies the signature of a request (AWS Signature Version 4) and the hash of its content.
func (f *fakeS3) signed(r *http.Request, body []byte) string {
	sum := sha256.Sum256(body)
	hash := r.Header.Get("X-Amz-Content-Sha256")
	if hash != hex.EncodeToString(sum[:]) {
		return "the content is not the one that was signed"
	}
	fields := map[string]string{}
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	for part := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		fields[name] = value
	}
	id, scope, _ := strings.Cut(fields["Credential"], "/")
	if scheme != "AWS4-HMAC-SHA256" || id != "the id" || !strings.HasSuffix(scope, "/eu-central-1/s3/aws4_request") {
		return "it is signed for another credential: " + fields["Credential"]
	}
	var headers strings.Builder
	for name := range strings.SplitSeq(fields["SignedHeaders"], ";") {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.TrimSpace(value))
	}
	query := strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), query, headers.String(), fields["SignedHeaders"], hash}, "\n")
	hashed := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{scheme, r.Header.Get("X-Amz-Date"), scope, hex.EncodeToString(hashed[:])}, "\n")
	key := []byte("AWS4" + f.secret)
	for part := range strings.SplitSeq(scope, "/") {
		key = mac(key, part)
	}
	if fields["Signature"] != hex.EncodeToString(mac(key, text)) {
		return "the signature is wrong"
	}
	return ""
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	io.WriteString(h, text)
	return h.Sum(nil)
}

func s3ConfigOf(endpoint string) *config {
	return &config{Name: "x", StorageType: typeS3, Interval: time.Hour, Retain: 2, PathPrefix: "back/ups", FilePrefix: "snap", S3: s3Config{
		Bucket: "bucket", Region: "eu-central-1", Endpoint: endpoint, AccessKeyID: "the id", SecretKey: "the secret", PathStyle: true,
	}}
}

func TestBucket(t *testing.T) {
	fake, endpoint := newFakeS3(t)
	f := newFixture(t)
	c := s3ConfigOf(endpoint)
	c.S3.SSE = true
	foreign := []string{"back/ups/notes", "back/ups/snap-17.snap", "back/ups/snap-1600000000000000000.snap.tmp", "back/ups/snap-deep/snap-1600000000000000000.snap", "snap-1600000000000000000.snap"}
	for _, key := range foreign {
		fake.objects[key] = nil
	}
	start := time.Unix(1_700_000_000, 0)
	for i := range 4 {
		kept, err := f.take(t.Context(), c, start.Add(time.Duration(i)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if want := "s3://bucket/back/ups/" + c.fileName(start.Add(time.Duration(i)*time.Second)); kept.url != want {
			t.Errorf("url = %s, want %s", kept.url, want)
		}
	}
	newest := "back/ups/snap-1700000003000000000.snap"
	want := append([]string{"back/ups/snap-1700000002000000000.snap", newest}, foreign...)
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(fake.objects)); !slices.Equal(got, want) {
		t.Errorf("objects = %v, want %v", got, want)
	}
	if _, err := archive.Verify(bytes.NewReader(fake.objects[newest])); err != nil {
		t.Errorf("the object is not a snapshot: %v", err)
	}
	if got := fake.headers[newest].Get("X-Amz-Server-Side-Encryption"); got != "AES256" {
		t.Errorf("encryption = %q", got)
	}
	if left, err := os.ReadDir(f.opts.TempDir); err != nil || len(left) != 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, err)
	}
}

// Keys of a schedule count, whatever the node has; a profile that is nowhere is named.
func TestBucketAndProfiles(t *testing.T) {
	_, endpoint := newFakeS3(t) // it knows one key
	f := newFixture(t)
	file := filepath.Join(t.TempDir(), "credentials")
	text := "[node]\naws_access_key_id = the node\naws_secret_access_key = of the node\n[other]\nrole_arn = arn:aws:iam::123456789012:role/other\nsource_profile = node\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	t.Setenv("AWS_CONFIG_FILE", file)
	t.Setenv("AWS_ACCESS_KEY_ID", "the environment")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "of the environment")
	for _, profile := range []string{"", "node", "other"} {
		t.Setenv("AWS_PROFILE", profile)
		if _, err := f.take(t.Context(), s3ConfigOf(endpoint), time.Now()); err != nil {
			t.Errorf("with profile %q: %v", profile, err)
		}
	}
	t.Setenv("AWS_PROFILE", "nowhere")
	_, err := f.take(t.Context(), s3ConfigOf(endpoint), time.Now())
	if err == nil || !strings.Contains(err.Error(), `"nowhere"`) || !strings.Contains(err.Error(), "AWS_PROFILE") {
		t.Errorf("with a profile that is nowhere: %v", err)
	}
}

func TestBucketInParts(t *testing.T) {
	fake, endpoint := newFakeS3(t)
	f := newFixture(t)
	f.source.state = make([]byte, 300<<10)
	rand.Read(f.source.state)
	put := func() error {
		b, err := newBucket(t.Context(), f.opts.TempDir, s3ConfigOf(endpoint))
		if err != nil {
			t.Fatal(err)
		}
		b.onePut = 100 << 10
		_, err = b.Put(t.Context(), "snap-1.snap", func(w io.Writer) error { return f.source.WriteSnapshot(t.Context(), w) })
		return err
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Verify(bytes.NewReader(fake.objects["back/ups/snap-1.snap"])); err != nil {
		t.Errorf("the parts do not make a snapshot: %v", err)
	}
	if n := strings.Count(strings.Join(fake.calls, " "), "PUT-upload"); n < 3 {
		t.Errorf("%d parts, want at least 3", n)
	}
	delete(fake.objects, "back/ups/snap-1.snap")
	for _, deny := range []string{"PUT-upload", "POST-upload"} {
		fake.deny = deny
		if err := put(); err == nil || !strings.Contains(err.Error(), "AccessDenied") {
			t.Errorf("denied %s: %v", deny, err)
		}
		if len(fake.uploads) != 0 || len(fake.objects) != 0 {
			t.Errorf("denied %s: uploads %d, objects %d are left", deny, len(fake.uploads), len(fake.objects))
		}
	}
}

func TestBucketRefuses(t *testing.T) {
	fake, endpoint := newFakeS3(t)
	f := newFixture(t)
	now := time.Now()
	for _, tt := range []struct{ deny, want string }{{"PUT", "AccessDenied"}, {"list", "could not be removed"}} {
		fake.deny = tt.deny
		if _, err := f.take(t.Context(), s3ConfigOf(endpoint), now); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("denied %s: %v, want %q", tt.deny, err, tt.want)
		}
	}
	fake.deny = ""
	c := s3ConfigOf(endpoint)
	c.S3.Bucket = "another"
	if _, err := f.take(t.Context(), c, now); err == nil || !strings.Contains(err.Error(), "NoSuchBucket") {
		t.Errorf("another bucket: %v", err)
	}
	// A damaged snapshot is not even sent.
	fake.calls = nil
	f.source.set(nil, true)
	if _, err := f.take(t.Context(), s3ConfigOf(endpoint), now); err == nil || len(fake.calls) != 0 {
		t.Errorf("a damaged snapshot: %v, calls %v", err, fake.calls)
	}
}

// An upload that is given up must end although the service does not answer.
func TestBucketHangs(t *testing.T) {
	f := newFixture(t)
	f.source.state = make([]byte, 300<<10)
	rand.Read(f.source.state)
	ctx, cancel := context.WithCancel(t.Context())
	released := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("uploads") {
			fmt.Fprint(w, `<InitiateMultipartUploadResult><UploadId>id-1</UploadId></InitiateMultipartUploadResult>`)
			return
		}
		cancel()
		<-released
	}))
	defer server.Close()
	defer close(released)
	b, err := newBucket(t.Context(), f.opts.TempDir, s3ConfigOf(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	b.onePut, b.abortTime = 100<<10, time.Millisecond
	done := make(chan error, 1)
	go func() {
		_, err := b.Put(ctx, "snap-1.snap", func(w io.Writer) error { return f.source.WriteSnapshot(t.Context(), w) })
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("an upload that was given up succeeded")
		}
	case <-time.After(20 * time.Second):
		t.Error("giving up waits for the service")
	}
}
