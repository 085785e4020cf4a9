package kv

import (
	"encoding/json"
	"testing"
)

func TestMergePatch(t *testing.T) {
	tests := []struct{ target, patch, want string }{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b","c":1}`, `{"a":null,"d":null}`, `{"c":1}`},
		{`{"a":{"b":1,"c":2}}`, `{"a":{"b":null,"d":3}}`, `{"a":{"c":2,"d":3}}`},
		{`{"a":[1]}`, `{"a":{"b":{"c":null}}}`, `{"a":{"b":{}}}`},
		{`{"a":{"b":1}}`, `{"a":[2]}`, `{"a":[2]}`},
	}
	for _, tt := range tests {
		var target, patch map[string]any
		if json.Unmarshal([]byte(tt.target), &target) != nil || json.Unmarshal([]byte(tt.patch), &patch) != nil {
			t.Fatal("bad test")
		}
		mergePatch(target, patch)
		if got, _ := json.Marshal(target); string(got) != tt.want {
			t.Errorf("mergePatch(%s, %s) = %s, want %s", tt.target, tt.patch, got, tt.want)
		}
	}
}
