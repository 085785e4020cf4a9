package cloud2kvtest

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestRecordings sends the fake what a real vault was sent, and compares what both answer: status, code of the error, the
// names of all members, the challenge.
func TestRecordings(t *testing.T) {
	for name, entries := range map[string]int{"TestCRUD": 9, "TestRecover": 9, "TestListSecrets": 14, "TestListDeletedSecrets": 13, "TestListSecretVersions": 8} {
		t.Run(name, func(t *testing.T) {
			r := ReadRecording(t, name)
			if len(r.Entries) != entries {
				t.Fatalf("the recording has %d requests, not %d", len(r.Entries), entries)
			}
			replay(t, r)
		})
	}
}

// lag returns how often the secret of request i was then looked for without success: how long the vault took depends on nothing else.
func lag(r Recording, i int) (n int) {
	name := func(uri string) string {
		path, _, _ := strings.Cut(uri, "?")
		return strings.TrimSuffix(strings.Split(path+"//", "/")[4], "/")
	}
	for _, e := range r.Entries[i+1:] {
		if e.RequestMethod == http.MethodGet && name(e.RequestURI) == name(r.Entries[i].RequestURI) {
			if e.StatusCode != http.StatusNotFound {
				return n
			}
			n++
		}
	}
	return 0
}

func replay(t *testing.T, r Recording) {
	v := New(t)
	v.tokens["recorded"] = true
	client := v.Client()
	link := ""
	ids := map[string]string{} // from recorded ids of versions to ours
	for i, e := range r.Entries {
		v.Lag(lag(r, i))
		uri := strings.Replace(e.RequestURI, "https://fakevault.local", v.URI, 1)
		if strings.Contains(uri, "skiptoken") {
			if link == "" {
				t.Fatalf("request %d asks for a page more than there is", i)
			}
			uri = link
		}
		for theirs, ours := range ids {
			uri = strings.Replace(uri, theirs, ours, 1)
		}
		var body io.Reader
		if text := string(e.RequestBody); text != "null" && text != "" {
			body = strings.NewReader(text)
		}
		req, err := http.NewRequestWithContext(t.Context(), e.RequestMethod, uri, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/json")
		if e.RequestHeaders["Authorization"] != "" {
			req.Header.Set("Authorization", "Bearer recorded")
		}
		if mime := e.RequestHeaders["Content-Type"]; mime != "" {
			req.Header.Set("Content-Type", mime)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		what := e.RequestMethod + " " + req.URL.Path
		if resp.StatusCode != e.StatusCode {
			t.Fatalf("request %d, %s: status %d, recorded %d: %s", i, what, resp.StatusCode, e.StatusCode, got)
		}
		for _, h := range []string{"Content-Type", "Cache-Control"} {
			if resp.Header.Get(h) != e.ResponseHeaders[h] {
				t.Errorf("request %d, %s: %s is %q, recorded %q", i, what, h, resp.Header.Get(h), e.ResponseHeaders[h])
			}
		}
		sameChallenge(t, resp.Header.Get("WWW-Authenticate"), e.ResponseHeaders["WWW-Authenticate"])
		ours, theirs := members(t, got), members(t, e.ResponseBody)
		if !slices.Equal(ours, theirs) {
			t.Errorf("request %d, %s:\nanswers %v\nrecorded %v", i, what, ours, theirs)
		}
		link = nextLink(got)
		learn(ids, got, e.ResponseBody)
	}
}

// sameChallenge compares challenges but for the tenant and the resource.
func sameChallenge(t *testing.T, got, want string) {
	t.Helper()
	want = strings.NewReplacer("72f988bf-86f1-41af-91ab-2d7cd011db47", TenantID, "https://local", audience).Replace(want)
	if got != want {
		t.Errorf("the challenge is %q, recorded %q", got, want)
	}
}

// members returns the paths of all members of a JSON text, with what must be equal: codes, texts of errors without names, names of secrets.
func members(t *testing.T, text []byte) []string {
	t.Helper()
	if len(bytes.TrimSpace(text)) == 0 || string(text) == "null" {
		return nil
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var paths []string
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(value)) {
				walk(path+"."+key, value[key])
			}
		case []any:
			paths = append(paths, path+"[]")
			for _, element := range value {
				walk(path+"[]", element)
			}
		default:
			paths = append(paths, path+exact(path, value))
		}
	}
	walk("", value)
	return paths
}

// exact returns what of a value must be as recorded.
func exact(path string, value any) string {
	text, isText := value.(string)
	switch {
	case !isText && (value == nil || strings.HasSuffix(path, "enabled") || strings.HasSuffix(path, "exp") || strings.HasSuffix(path, "nbf")):
		text, _ := json.Marshal(value)
		return "=" + string(text)
	case strings.HasSuffix(path, ".id"), strings.HasSuffix(path, ".recoveryId"):
		parts := strings.Split(text, "/")
		if len(parts) == 6 {
			parts[5] = "version"
		}
		return "=" + strings.Join(parts[3:], "/")
	case strings.HasSuffix(path, "nextLink"):
		return " with port:" + map[bool]string{true: "yes", false: "no"}[strings.Contains(text, ":443/")]
	case strings.HasSuffix(path, "message"):
		return "=" + text[:min(30, len(text))]
	case isText:
		return "=" + text
	}
	return ""
}

func nextLink(text []byte) string {
	var page struct {
		NextLink string `json:"nextLink"`
	}
	_ = json.Unmarshal(text, &page)
	return page.NextLink
}

// learn notes which of our versions is which recorded one.
func learn(ids map[string]string, got, recorded []byte) {
	id := func(text []byte) string {
		var answer struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(text, &answer)
		return answer.ID[strings.LastIndex(answer.ID, "/")+1:]
	}
	if theirs, ours := id(recorded), id(got); theirs != "" && ours != "" {
		ids[theirs] = ours
	}
}
