package process

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/system/systemtest"
)

func TestProfiles(t *testing.T) {
	p := &Profiles{}
	r := systemtest.Router(p.Routes)
	body := func(path string) string {
		t.Helper()
		_, resp, err := systemtest.Ask(t, r, engines.Read, path, "")
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if resp.Raw.Stream == nil {
			return string(resp.Raw.Body)
		}
		var b bytes.Buffer
		if err := resp.Raw.Stream(t.Context(), &b); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return b.String()
	}
	if got := body("pprof"); !strings.Contains(got, "goroutine") || !strings.Contains(got, "heap") {
		t.Errorf("index = %q", got)
	}
	if got := body("pprof/goroutine?debug=1"); !strings.Contains(got, "goroutine profile:") {
		t.Errorf("goroutine = %.60q", got)
	}
	if got := body("pprof/heap?gc=true"); len(got) < 2 || got[:2] != "\x1f\x8b" {
		t.Errorf("heap is not a gzipped profile: %.10q", got)
	}
	if got := body("pprof/cmdline"); got != os.Args[0] {
		t.Errorf("cmdline = %q, want the program alone", got)
	}
	if got := body("pprof/symbol?0x0"); !strings.HasPrefix(got, "num_symbols: 1") {
		t.Errorf("symbol = %q", got)
	}
	systemtest.Refused(t, r, engines.KindNotFound, engines.Read, "pprof/nope", "")
	systemtest.Refused(t, r, engines.KindInvalid, engines.Read, "pprof/profile?seconds=0", "")
	systemtest.Refused(t, r, engines.KindInvalid, engines.Read, "pprof/trace?seconds=301", "")

	// A profile ends with its client.
	_, resp, err := systemtest.Ask(t, r, engines.Read, "pprof/profile?seconds=300", "")
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := resp.Raw.Stream(gone, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a profile whose client is gone = %v", err)
	}
	for _, route := range r.Routes() {
		if !route.Flags.Has(engines.Sudo | engines.RootNamespace) {
			t.Errorf("%s does not need sudo in the root namespace", route.Pattern)
		}
	}
}
