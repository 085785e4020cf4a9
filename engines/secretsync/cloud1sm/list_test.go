package cloud1sm_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1sm/cloud1smtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// TestNoList: a response without a list is not one of no secrets, as all of which would then have drifted.
func TestNoList(t *testing.T) {
	for _, body := range []string{`{}`, `{"NextToken":""}`, `null`} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-amz-json-1.1")
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(other.Close)
		n := 0
		for _, err := range open(t, cloud1smtest.New(t), destination.Env{URL: other.URL}, nil).List(t.Context()) {
			failed(t, err, destination.External, destination.Unexpected, false)
			n++
		}
		if n != 1 {
			t.Errorf("%s is a list", body)
		}
	}
}
