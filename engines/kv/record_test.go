package kv

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"testing"
	"time"
)

func sampleRecords() []*record {
	return []*record{
		{versions: []version{}},
		{created: 1, updated: 2, current: 3, casRequired: true, maxVersions: 4, deleteAfter: time.Hour,
			custom:   json.RawMessage(`{"a":"b"}`),
			versions: []version{{number: 2, created: 5, deletion: 6}, {number: 3, created: 7, destroyed: true}}},
		{created: math.MaxInt64, updated: math.MaxInt64, current: math.MaxUint32, maxVersions: math.MaxUint32,
			deleteAfter: math.MaxInt64, versions: []version{{math.MaxUint32, math.MaxInt64, math.MaxInt64, true}}},
	}
}

func TestRecordRoundTrip(t *testing.T) {
	for _, want := range sampleRecords() {
		got, err := decodeRecord(want.encode())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("decode(encode(%+v)) = %+v, %v", want, got, err)
		}
	}
}

func TestDecodeRecordRefuses(t *testing.T) {
	good := sampleRecords()[1].encode()
	for n := range good {
		if _, err := decodeRecord(good[:n]); err == nil {
			t.Errorf("accepted the first %d of %d bytes", n, len(good))
		}
	}
	if _, err := decodeRecord(append(bytes.Clone(good), 0)); err == nil {
		t.Error("accepted a byte too many")
	}
	other := bytes.Clone(good)
	other[0] = 2
	if _, err := decodeRecord(other); err == nil {
		t.Error("accepted an unknown format")
	}
	twice := &record{current: 3, versions: []version{{number: 3}, {number: 3}}}
	if _, err := decodeRecord(twice.encode()); err == nil {
		t.Error("accepted a version twice")
	}
	beyond := &record{current: 3, versions: []version{{number: 4}}}
	if _, err := decodeRecord(beyond.encode()); err == nil {
		t.Error("accepted a version above the current one")
	}
}

func TestVersionNumbersEnd(t *testing.T) {
	r := &record{current: math.MaxUint32}
	if _, _, err := r.add(1, &config{}); err == nil || r.current != math.MaxUint32 {
		t.Errorf("version %d after the last one, error %v", r.current, err)
	}
}

func TestPayloadKey(t *testing.T) {
	if got := payloadKey("a/b", 0xbeef12); got != "v/00beef12/a/b" {
		t.Errorf("payloadKey = %q", got)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for _, r := range sampleRecords() {
		f.Add(r.encode())
	}
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, value []byte) {
		r, err := decodeRecord(value)
		if err != nil {
			return
		}
		again, err := decodeRecord(r.encode())
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Errorf("decode(encode(%+v)) = %+v, %v", r, again, err)
		}
	})
}
