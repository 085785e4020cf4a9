package mergepatch_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/coffer-project/coffer/engines/kv/mergepatch"
)

func FuzzMergePatch(f *testing.F) {
	f.Add([]byte(`{"a":{"b":1}}`), []byte(`{"a":{"b":null,"c":[1]}}`))
	f.Add([]byte(`{}`), []byte(`{"a":null}`))
	f.Add([]byte(`{"<":1e3}`), []byte(`{"\u003c":2}`))
	f.Fuzz(func(t *testing.T, target, patch []byte) {
		var before map[string]any
		if json.Unmarshal(target, &before) != nil || !json.Valid(patch) || !bytes.HasPrefix(patch, []byte("{")) || !bytes.HasPrefix(target, []byte("{")) {
			return
		}
		merged, err := mergepatch.Apply(target, patch)
		if err != nil {
			t.Fatalf("%s with %s: %v", target, patch, err)
		}
		again, err := mergepatch.Apply(merged, patch)
		if err != nil || !bytes.Equal(merged, again) {
			t.Errorf("%s with %s: %s, and again: %s, %v", target, patch, merged, again, err)
		}
		if _, err := mergepatch.Subkeys(merged, 0); err != nil {
			t.Errorf("subkeys of %s: %v", merged, err)
		}
	})
}
