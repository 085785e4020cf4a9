package storage_test

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/storage"
)

func TestTimeTextSortsAsTimesDo(t *testing.T) {
	last := ""
	for _, ms := range []int64{0, 1, 9, 10, 35, 36, 61, 62, 3843, 3844, 1_795_000_000_123, 1_795_000_000_124, 4_000_000_000_000} {
		text := storage.TimeText(time.UnixMilli(ms))
		if len(text) != storage.TimeTextBytes || text <= last {
			t.Errorf("%d is %q, after %q", ms, text, last)
		}
		last = text
	}
	if text := storage.TimeText(time.UnixMilli(1_795_000_000_123)); text != "0VbK14TD" {
		t.Errorf("text %q", text)
	}
	if text := storage.TimeText(time.Time{}); text != "00000000" {
		t.Errorf("the zero time is %q", text)
	}
}
