package search_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/server/audit/search"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// record is the two lines of a request at a minute after noon.
func record(minute int, who, op, path string, status int, failure, hash string) string {
	at := noon.Add(time.Duration(minute) * time.Minute).Format(time.RFC3339Nano)
	both := fmt.Sprintf(`"auth":{"display_name":%q,"entity_id":"e-%s","accessor":"hmac-sha256:a-%s"},"request":{"id":"%d","operation":%q,"namespace":{"id":"n","path":"team/"},"path":%q,`, who, who, who, minute, op, path)
	line := fmt.Sprintf(`audit: {"time":%q,"type":"request",%s"data":{"x":%q},"remote_address":"10.0.0.1"}}`, at, both, hash) + "\n"
	return line + fmt.Sprintf(`audit: {"time":%q,"type":"response",%s"remote_address":"10.0.0.1"},"response":{"mount_type":"kv","status":%d},"error":%q}`, at, both, status, failure) + "\n"
}

func TestSearch(t *testing.T) {
	log := record(0, "ana", "read", "kv/data/a", 200, "", "") + record(10, "bob", "update", "kv/data/b", 200, "", "hmac-sha256:77") + "no record\n\n" +
		record(20, "ana", "read", "kv/data/c", 403, "permission denied", "") + record(30, "ana", "list", "sys/mounts", 200, "", "") + `audit: {"time":"2026-05-01T12:31:00Z","ty`
	day := search.Filter{From: noon.Add(-time.Hour), To: noon.Add(time.Hour)}
	with := func(change func(*search.Filter)) search.Filter {
		f := day
		change(&f)
		return f
	}
	for _, tt := range []struct {
		name string
		want search.Filter
		ids  []string
	}{
		{"all", day, []string{"30", "20", "10", "0"}},
		{"display name", with(func(f *search.Filter) { f.Actor = []string{"ANA"} }), []string{"30", "20", "0"}},
		{"entity", with(func(f *search.Filter) { f.Actor = []string{"e-bob"} }), []string{"10"}},
		{"accessor", with(func(f *search.Filter) { f.Actor = []string{"x", "hmac-sha256:a-bob"} }), []string{"10"}},
		{"path", with(func(f *search.Filter) { f.Path = "team/kv/data/" }), []string{"20", "10", "0"}},
		{"operation", with(func(f *search.Filter) { f.Operation = "list" }), []string{"30"}},
		{"denied", with(func(f *search.Filter) { f.Outcome = "denied" }), []string{"20"}},
		{"failed", with(func(f *search.Filter) { f.Outcome = "failed" }), []string{"20"}},
		{"worked", with(func(f *search.Filter) { f.Outcome = "ok" }), []string{"30", "10", "0"}},
		{"hash in a request", with(func(f *search.Filter) { f.Hash = "hmac-sha256:77" }), []string{"10"}},
		{"requests", with(func(f *search.Filter) { f.OfRequests, f.Operation = true, "list" }), []string{"30", "30"}},
		{"range", with(func(f *search.Filter) { f.From, f.To = noon.Add(10*time.Minute), noon.Add(20*time.Minute) }), []string{"10"}},
		{"none", with(func(f *search.Filter) { f.Actor = []string{"eve"} }), nil},
	} {
		found, err := search.Search(t.Context(), strings.NewReader(log), int64(len(log)), tt.want, 10, 4)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		n := 0
		for _, r := range found.Records {
			ids = append(ids, r.ID)
		}
		for _, b := range found.Buckets {
			n += b
		}
		if !reflect.DeepEqual(ids, tt.ids) || found.Matches != len(tt.ids) || n != len(tt.ids) {
			t.Errorf("%s: found %v, %d matches, %d in buckets; want %v", tt.name, ids, found.Matches, n, tt.ids)
		}
	}
	found, err := search.Search(t.Context(), strings.NewReader(log), int64(len(log)), day, 1, 2)
	if err != nil || len(found.Records) != 1 || found.Matches != 4 || !reflect.DeepEqual(found.Buckets, []int{0, 4}) || found.Ended != "start" || !found.Oldest.Equal(noon) {
		t.Errorf("found %+v, %v", found, err)
	}
	if got := found.Records[0]; got.MountType != "kv" || got.Status != 200 || got.Outcome != "ok" || got.Namespace != "team/" || got.RemoteAddress != "10.0.0.1" {
		t.Errorf("the record is %+v", got)
	}
}

// TestBounds searches a file that is larger than the bound, with lines that are longer than a block, and stops at the range.
func TestBounds(t *testing.T) {
	long := record(0, "ana", "read", strings.Repeat("p", 600<<10), 200, "", "")
	log := strings.Repeat(long, search.MaxBytes/len(long)+2)
	found, err := search.Search(t.Context(), strings.NewReader(log), int64(len(log)), search.Filter{From: noon.Add(-time.Hour), To: noon.Add(time.Hour)}, 3, 0)
	if err != nil || found.Ended != "bytes" && found.Ended != "time" || found.Read > search.MaxBytes+(1<<20) || len(found.Records) != 3 || len(found.Records[0].Path) > 600 {
		t.Errorf("read %d, ended by %q, %d records, %v", found.Read, found.Ended, len(found.Records), err)
	}
	var b strings.Builder
	for i := range 5000 {
		b.WriteString(record(i, "ana", "read", "kv/data/"+strings.Repeat("x", 200), 200, "", ""))
	}
	found, err = search.Search(t.Context(), strings.NewReader(b.String()), int64(b.Len()), search.Filter{From: noon.Add(4990 * time.Minute), To: noon.Add(6000 * time.Minute)}, 100, 10)
	if err != nil || found.Matches != 10 || found.Ended != "range" || found.Read > 1<<20 {
		t.Errorf("found %d matches, ended by %q after %d bytes, %v", found.Matches, found.Ended, found.Read, err)
	}
}
