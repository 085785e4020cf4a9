package record

import (
	"encoding/json"
	"testing"
	"time"
)

func FuzzDecodeRecord(f *testing.F) {
	f.Add((&Record{ID: "aws/creds/a/x", Namespace: "root", Mount: "u1", Internal: json.RawMessage(`{"a":1}`), IssuedAt: time.Unix(1, 0)}).Encode())
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"internal":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, value []byte) {
		rec, err := Decode(value)
		if err != nil {
			return
		}
		again, err := Decode(rec.Encode())
		if err != nil || again.ID != rec.ID || !again.ExpiresAt.Equal(rec.ExpiresAt) || again.State != rec.State {
			t.Errorf("%q became %+v, %v", value, again, err)
		}
	})
}
