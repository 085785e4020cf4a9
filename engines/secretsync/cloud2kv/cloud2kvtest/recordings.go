package cloud2kvtest

import (
	"embed"
	"encoding/json"
	"testing"
)

// recordings is the traffic of the vendor's own tests against a real vault.
//
//go:embed testdata/*.json
var recordings embed.FS

// Recording is the traffic of one of the vendor's tests, in order.
type Recording struct {
	Entries []struct {
		RequestURI      string            `json:"RequestUri"`
		RequestMethod   string            `json:"RequestMethod"`
		RequestHeaders  map[string]string `json:"RequestHeaders"`
		RequestBody     json.RawMessage   `json:"RequestBody"`
		StatusCode      int               `json:"StatusCode"`
		ResponseHeaders map[string]string `json:"ResponseHeaders"`
		ResponseBody    json.RawMessage   `json:"ResponseBody"`
	} `json:"Entries"`
}

// ReadRecording returns the recording of a test, such as "TestCRUD".
func ReadRecording(t testing.TB, name string) (r Recording) {
	t.Helper()
	text, err := recordings.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}
