package cloud2kvtest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// recordingsModule has the recorded traffic of the vendor's own tests against a real vault.
const recordingsModule = "github.com/Azure/azure-sdk-for-go/sdk/keyvault/azsecrets"

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
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", recordingsModule).Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		t.Fatalf("the vendor's recordings are not there: go mod download %s (%v)", recordingsModule, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "testdata", "recordings", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}
