package storage_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/storage"
)

func TestKey(t *testing.T) {
	tests := []struct {
		key   storage.Key
		class storage.Class
		area  string
		path  string
		valid bool
	}{
		{"s/mount/a", storage.Shared, "mount", "a", true},
		{"l/mount/a/b/c", storage.Local, "mount", "a/b/c", true},
		{"s/mount/a/", storage.Shared, "mount", "a/", true},
		{"s/mount/", storage.Shared, "mount", "", true},
		{"s/mount//a", storage.Shared, "mount", "/a", true},
		{"s/é/ü", storage.Shared, "é", "ü", true},
		{"n/node/a", storage.Private, "node", "a", false},
		{"x/mount/a", 'x', "mount", "a", false},
		{"s//a", storage.Shared, "", "", false},
		{"s/mount", storage.Shared, "", "", false},
		{"s/", storage.Shared, "", "", false},
		{"s", 0, "", "", false},
		{"", 0, "", "", false},
		{"mount/a", 0, "", "", false},
		{"s/mount/\x00", storage.Shared, "mount", "\x00", false},
		{"s/mount/\xff", storage.Shared, "mount", "\xff", false},
	}
	for _, tt := range tests {
		if got := tt.key.Class(); got != tt.class {
			t.Errorf("Key(%q).Class() = %q, want %q", tt.key, got, tt.class)
		}
		if got := tt.key.Area(); got != tt.area {
			t.Errorf("Key(%q).Area() = %q, want %q", tt.key, got, tt.area)
		}
		if got := tt.key.Path(); got != tt.path {
			t.Errorf("Key(%q).Path() = %q, want %q", tt.key, got, tt.path)
		}
		if err := tt.key.Validate(); (err == nil) != tt.valid {
			t.Errorf("Key(%q).Validate() = %v, want valid %v", tt.key, err, tt.valid)
		}
	}
	if got, want := storage.NewKey(storage.Local, "token", "a/b"), storage.Key("l/token/a/b"); got != want {
		t.Errorf("NewKey = %q, want %q", got, want)
	}
}

func TestBatchValidate(t *testing.T) {
	value := func(n int) []byte { return make([]byte, n) }
	full := func(extra int) storage.Batch { // as many of the largest values as fit, and a rest
		var b storage.Batch
		size := 0
		for _, name := range []string{"1", "2", "3", "4", "5", "6", "7"} {
			b.Puts = append(b.Puts, storage.Put{Key: storage.Key("s/m/" + name), Value: value(storage.MaxValueBytes)})
			size += len("s/m/1") + storage.MaxValueBytes
		}
		rest := storage.MaxBatchBytes - size - len("s/m/8")
		b.Puts = append(b.Puts, storage.Put{Key: "s/m/8", Value: value(rest + extra)})
		return b
	}
	sealed := full(0)
	for i := range sealed.Puts {
		sealed.Puts[i].Value = append(sealed.Puts[i].Value, value(34)...)
	}
	longest := storage.Key("s/m/" + strings.Repeat("k", storage.MaxKeyBytes-4))
	tests := []struct {
		name  string
		batch storage.Batch
		slack int
		want  error
	}{
		{"empty", storage.Batch{}, 0, nil},
		{"largest key", storage.Batch{Deletes: []storage.Key{longest}}, 0, nil},
		{"larger key", storage.Batch{Deletes: []storage.Key{longest + "k"}}, 0, storage.ErrTooLarge},
		{"larger key read", storage.Batch{Reads: []storage.Read{{Key: longest + "k"}}}, 0, storage.ErrTooLarge},
		{"largest value", storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: value(storage.MaxValueBytes)}}}, 0, nil},
		{"larger value", storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: value(storage.MaxValueBytes + 1)}}}, 0, storage.ErrTooLarge},
		{"larger value with slack", storage.Batch{Puts: []storage.Put{{Key: "s/m/a", Value: value(storage.MaxValueBytes + 34)}}}, 34, nil},
		{"largest batch", full(0), 0, nil},
		{"larger batch", full(1), 0, storage.ErrTooLarge},
		{"largest batch, sealed", sealed, 34, nil},
		{"largest batch, sealed, too little slack", sealed, 33, storage.ErrTooLarge},
	}
	for _, tt := range tests {
		if err := tt.batch.Validate(tt.slack); !errors.Is(err, tt.want) {
			t.Errorf("%s: Validate(%d) = %v, want %v", tt.name, tt.slack, err, tt.want)
		}
	}
}

func TestChangeTouches(t *testing.T) {
	ch := storage.Change{Entries: []storage.Entry{{Key: "s/m/put", Version: 1}, {Key: "l/m/deleted"}}}
	tests := []struct {
		prefix storage.Key
		want   bool
	}{
		{"s/m/put", true}, {"s/m/", true}, {"l/m/", true}, {"l/m/deleted", true},
		{"s/m/put/", false}, {"s/n/", false}, {"l/m/put", false},
	}
	for _, tt := range tests {
		if got := ch.Touches(tt.prefix); got != tt.want {
			t.Errorf("Touches(%q) = %v, want %v", tt.prefix, got, tt.want)
		}
	}
	if reset := (storage.Change{Reset: true}); !reset.Touches("s/anything") {
		t.Error("a reset touches nothing, want everything")
	}
}
