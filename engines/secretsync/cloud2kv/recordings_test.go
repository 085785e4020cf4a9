package cloud2kv

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/cloud2kvtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// recorded is a transport that answers as a real vault did: what it answered to the same request, in the same order. The
// last answer stays.
type recorded struct {
	t       *testing.T
	answers map[string][]func() *http.Response
}

const (
	recordedVault  = "https://fakevault.local"
	recordedTenant = "72f988bf-86f1-41af-91ab-2d7cd011db47"
)

// request names a request: without the version of the API, and without what the SDK has changed since.
func request(method, uri string) string {
	uri = strings.Replace(uri, ":443/", "/", 1)
	path, query, _ := strings.Cut(strings.TrimPrefix(uri, recordedVault), "?")
	_, token, _ := strings.Cut(strings.ReplaceAll(query, "%24", "$"), "$skiptoken=")
	token, _, _ = strings.Cut(token, "&")
	return method + " " + strings.TrimSuffix(path, "/") + " " + token
}

func (r *recorded) add(t *testing.T, names ...string) {
	for _, name := range names {
		for _, e := range cloud2kvtest.ReadRecording(t, name).Entries {
			answer := func() *http.Response {
				resp := reply(e.StatusCode, string(e.ResponseBody))
				for key, value := range e.ResponseHeaders {
					resp.Header.Set(key, value)
				}
				return resp
			}
			key := request(e.RequestMethod, e.RequestURI)
			if e.RequestHeaders["Authorization"] == "" {
				key = "challenge"
			}
			r.answers[key] = append(r.answers[key], answer)
		}
	}
}

func (r *recorded) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == "login.microsoftonline.com" {
		base := "https://" + req.URL.Host + "/" + recordedTenant
		resp := reply(200, fmt.Sprintf(`{"token_endpoint":"%[1]s/t","authorization_endpoint":"%[1]s/a","issuer":"%[1]s/v2.0","token_type":"Bearer","expires_in":3599,"access_token":"x"}`, base))
		resp.Request = req
		return resp, nil
	}
	key := request(req.Method, req.URL.String())
	if req.Header.Get("Authorization") == "" {
		key = "challenge"
	}
	left := r.answers[key]
	if len(left) == 0 {
		r.t.Errorf("nothing like %q was recorded", key)
		return nil, http.ErrHandlerTimeout
	}
	resp := left[0]()
	resp.Request = req
	if len(left) > 1 {
		r.answers[key] = left[1:]
	}
	return resp, nil
}

func replayed(t *testing.T, names ...string) (*vault, *recorded) {
	r := &recorded{t: t, answers: map[string][]func() *http.Response{}}
	r.add(t, names...)
	c := config()
	c.TenantID = recordedTenant
	return opened(t, c, destination.Env{Client: &http.Client{Transport: r}, URL: recordedVault}), r
}

// What a real vault has answered is understood.
func TestRecordedSecrets(t *testing.T) {
	v, _ := replayed(t, "TestCRUD")
	f := desttest.Read(t, v, "secret518723441")
	if f.State != destination.Present || string(f.Value) != "value518723441" || f.Version == "" || f.Handle != handle("d0215295974a4da8ab877cb69fefd5ec") || f.OwnerTag != "" {
		t.Errorf("found %+v", f)
	}
	s, err := v.live(t.Context(), "secret518723441")
	if err != nil || !maps.Equal(s.tags, map[string]string{"tag": "value"}) || s.contentType == nil || *s.contentType != "big secret" {
		t.Errorf("found %+v, %v", s, err)
	}
}

func TestRecordedRecovery(t *testing.T) {
	v, _ := replayed(t, "TestRecover")
	const name = "secret422508987"
	// The vault is recovering it, then it is there.
	if f := desttest.Read(t, v, name); f.State != destination.Absent {
		t.Errorf("found %+v", f)
	}
	if f := desttest.Read(t, v, name); f.State != destination.Present || string(f.Value) != "value422508987" {
		t.Errorf("found %+v", f)
	}
	s, err := v.deleted(t.Context(), name)
	if err != nil || s == nil || s.version != "621517f4c42642a1a28f707992ce3761" || s.enabled != true {
		t.Errorf("found %+v, %v", s, err)
	}
}

func TestRecordedLists(t *testing.T) {
	v, r := replayed(t, "TestListSecrets")
	// The vendor's test asked for a page of one.
	var names []string
	for f, err := range v.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if f.State != destination.Present || f.Version == "" || f.OwnerTag != "" {
			t.Errorf("listed %+v", f)
		}
		names = append(names, f.Name)
	}
	if len(names) != 4 || !slices.IsSorted(names) {
		t.Errorf("listed %v", names)
	}
	r.add(t, "TestListSecretVersions")
	versions, err := v.versions(t.Context(), "listversions2628844972")
	if err != nil || len(versions) != 3 || newest(versions).version != "c5126faf4e694c4c9adfdc32aa00aea0" {
		t.Errorf("%d versions, %v", len(versions), err)
	}
}
