package plan

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

func TestDecide(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	const (
		mine     = "installation-association"
		sibling  = "installation-another"
		stranger = "elsewhere-association"
	)
	value := &Desired{Value: []byte("v"), Fingerprint: []byte("print")}
	owned := state.Item{Name: "n", Owned: true, ID: "id", Version: "1", Fingerprint: []byte("print"), WrittenAt: now.Add(-time.Hour)}
	with := func(change func(*state.Item)) *state.Item { it := owned; change(&it); return &it }
	intended := func(at time.Time, create, owned bool) *state.Item {
		return with(func(it *state.Item) { it.Owned, it.Intent = owned, &state.Intent{At: at, Create: create} })
	}
	there := func(change func(*destination.Found)) destination.Found {
		f := destination.Found{Name: "n", State: destination.Present, ID: "id", Version: "1", ChangedAt: now.Add(-time.Hour)}
		change(&f)
		return f
	}
	plain := there(func(*destination.Found) {})
	marked := func(mark, value string) destination.Found {
		return there(func(f *destination.Found) { f.OwnerTag, f.Value, f.Known = mark, []byte(value), true })
	}
	deleted := func(mark string) destination.Found {
		return there(func(f *destination.Found) { f.State, f.OwnerTag = destination.Deleted, mark })
	}
	absent := destination.Found{Name: "n"}
	for name, c := range map[string]struct {
		View
		want string
		ours bool
	}{
		"nothing there, nothing known":                    {View{Desired: value, Found: absent}, Create, false},
		"nothing there any more":                          {View{Desired: value, LastApplied: &owned, Found: absent}, Create, false},
		"nothing there, deleted there was no mark":        {View{Desired: value, Found: deleted(""), HasOwnerTags: true}, Conflict, false},
		"another client's, plain":                         {View{Desired: value, Found: plain}, Conflict, false},
		"another client's, marked":                        {View{Desired: value, Found: marked("", "v"), HasOwnerTags: true}, Conflict, false},
		"a stranger's mark, though the ledger says":       {View{Desired: value, LastApplied: &owned, Found: marked(stranger, "v"), HasOwnerTags: true}, Conflict, false},
		"a mark that went":                                {View{Desired: value, LastApplied: &owned, Found: marked("", "v"), HasOwnerTags: true}, Conflict, false},
		"a sibling's":                                     {View{Desired: value, Found: marked(sibling, "v"), HasOwnerTags: true}, Conflict, false},
		"our mark, the ledger lost":                       {View{Desired: value, Found: marked(mine, "v"), HasOwnerTags: true}, None, true},
		"our mark, the same value":                        {View{Desired: value, LastApplied: &owned, Found: marked(mine, "v"), HasOwnerTags: true}, None, true},
		"our mark, another value":                         {View{Desired: value, LastApplied: &owned, Found: marked(mine, "x"), HasOwnerTags: true}, Update, true},
		"our mark, deleted":                               {View{Desired: value, LastApplied: &owned, Found: deleted(mine), HasOwnerTags: true}, Recover, true},
		"deleted by a sibling that gave it up":            {View{Desired: value, Found: deleted(sibling), HasOwnerTags: true}, Recover, true},
		"deleted by a stranger":                           {View{Desired: value, Found: deleted(stranger), HasOwnerTags: true}, Conflict, false},
		"adopted from another client":                     {View{Desired: value, Found: plain, Adopt: true}, Adopt, false},
		"adopted from a stranger, deleted":                {View{Desired: value, Found: deleted(stranger), HasOwnerTags: true, Adopt: true}, Adopt, false},
		"adopted where it is equal":                       {View{Desired: value, Found: marked(stranger, "v"), HasOwnerTags: true, AdoptEqual: true}, Adopt, false},
		"not adopted where it is not":                     {View{Desired: value, Found: marked(stranger, "w"), HasOwnerTags: true, AdoptEqual: true}, Conflict, false},
		"not adopted where it cannot be read":             {View{Desired: value, Found: plain, AdoptEqual: true}, Conflict, false},
		"not adopted where it is deleted":                 {View{Desired: value, Found: deleted(stranger), HasOwnerTags: true, AdoptEqual: true}, Conflict, false},
		"adopt what is ours anyhow":                       {View{Desired: value, LastApplied: &owned, Found: plain, Adopt: true}, None, true},
		"unreadable, our last write":                      {View{Desired: value, LastApplied: &owned, Found: plain}, None, true},
		"unreadable, another value wanted":                {View{Desired: value, LastApplied: with(func(it *state.Item) { it.Fingerprint = []byte("other") }), Found: plain}, Update, true},
		"unreadable, changed by another client":           {View{Desired: value, LastApplied: &owned, Found: there(func(f *destination.Found) { f.Version = "2" })}, Conflict, false},
		"unreadable, changed, to be repaired":             {View{Desired: value, LastApplied: &owned, Found: there(func(f *destination.Found) { f.Version = "2" }), Repair: true}, Update, true},
		"unreadable, created again, even to be repaired":  {View{Desired: value, LastApplied: &owned, Found: there(func(f *destination.Found) { f.ID = "id2" }), Repair: true}, Conflict, false},
		"a lost create that was made":                     {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now.Add(time.Second) })}, Update, true},
		"a lost create, their clock is behind":            {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-time.Minute) })}, Update, true},
		"a lost create, but theirs was before":            {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-maxClockLag) })}, Conflict, false},
		"a lost create, but theirs came much later":       {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(maxWriteDelay) })}, Conflict, false},
		"a lost create, and the place tells no time":      {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = time.Time{} })}, Conflict, false},
		"a lost update that was made":                     {View{Desired: value, LastApplied: intended(now, false, true), Found: there(func(f *destination.Found) { f.Version, f.ChangedAt = "2", now })}, Update, true},
		"a lost update that was not made":                 {View{Desired: value, LastApplied: intended(now, false, true), Found: plain}, Update, true},
		"a lost update, and it was created again":         {View{Desired: value, LastApplied: intended(now, false, true), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now })}, Conflict, false},
		"a lost create of what we had":                    {View{Desired: value, LastApplied: intended(now, true, true), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now })}, Update, true},
		"not wanted, ours":                                {View{LastApplied: &owned, Found: plain}, Delete, true},
		"not wanted, our mark, changed by another client": {View{LastApplied: &owned, Found: marked(mine, "x"), HasOwnerTags: true}, Delete, true},
		"not wanted, changed by another client, no marks": {View{LastApplied: &owned, Found: there(func(f *destination.Found) { f.Version = "2" })}, Forget, false},
		"not wanted, changed, to be repaired":             {View{LastApplied: &owned, Found: there(func(f *destination.Found) { f.Version = "2" }), Repair: true}, Forget, false},
		"not wanted, another client's mark":               {View{LastApplied: &owned, Found: marked(stranger, "x"), HasOwnerTags: true}, Forget, false},
		"not wanted, retained":                            {View{LastApplied: &owned, Found: plain, Retain: true}, Retain, false},
		"not wanted, retained, and the end":               {View{LastApplied: &owned, Found: plain, Retain: true, Ending: true}, Forget, false},
		"not wanted, gone":                                {View{LastApplied: &owned, Found: absent}, Forget, false},
		"not wanted, deleted":                             {View{LastApplied: &owned, Found: deleted(mine), HasOwnerTags: true}, Forget, false},
		"not wanted, written just now and not shown":      {View{LastApplied: with(func(it *state.Item) { it.WrittenAt = now }), Found: absent}, Wait, false},
		"not wanted, written a while ago, not shown":      {View{LastApplied: with(func(it *state.Item) { it.WrittenAt = now.Add(-15 * time.Second) }), Found: absent}, Wait, false},
		"not wanted, perhaps written and not shown":       {View{LastApplied: intended(now.Add(-30*time.Second), true, false), Found: absent}, Wait, false},
		"not wanted, perhaps written, long ago":           {View{LastApplied: intended(now.Add(-unknownOutcomeWindow), true, false), Found: absent}, Forget, false},
		"not wanted, retained, and written just now":      {View{LastApplied: with(func(it *state.Item) { it.WrittenAt = now }), Found: absent, Retain: true}, Retain, false},
		"not wanted, a lost create that was made":         {View{LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now })}, Delete, true},
		"not wanted, a lost create, and it is theirs ":    {View{LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-time.Hour) })}, Forget, false},
	} {
		c.OwnerTag, c.Now, c.PropagationDelay = mine, now, 20*time.Second
		got := c.Decide()
		if got.Overwrites && got.Do != Update && got.Do != Delete {
			t.Errorf("%s: %+v overwrites a change", name, got)
		}
		if got.Do != c.want || got.OwnedThere != c.ours || got.Reason == "" {
			t.Errorf("%s: %+v, want %q (ours: %v)", name, got, c.want, c.ours)
		}
	}
}

func TestOverwrites(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	const mine = "installation-association"
	had := func(change func(*state.Item)) *state.Item {
		it := state.Item{Name: "n", Owned: true, ID: "id", Version: "1", Fingerprint: []byte("last"), WrittenAt: now.Add(-time.Hour)}
		change(&it)
		return &it
	}
	written := had(func(*state.Item) {})
	lost := func(prints ...string) *state.Item {
		return had(func(it *state.Item) {
			it.Intent = &state.Intent{At: now.Add(-time.Hour)}
			for _, p := range prints {
				it.Intent.Fingerprints = append(it.Intent.Fingerprints, []byte(p))
			}
		})
	}
	justNow := had(func(it *state.Item) { it.WrittenAt = now.Add(-time.Second) })
	found := func(version string, ago time.Duration, known bool) destination.Found {
		return destination.Found{Name: "n", State: destination.Present, OwnerTag: mine, ID: "id", Version: version, ChangedAt: now.Add(-ago), Value: []byte("x"), Known: known}
	}
	for name, c := range map[string]struct {
		had   *state.Item
		found destination.Found
		print string // of what was found
		want  bool
	}{
		"our last version":                               {written, found("1", time.Hour, true), "last", false},
		"another version":                                {written, found("2", time.Minute, true), "theirs", true},
		"another version that cannot be read":            {written, found("2", time.Minute, false), "", true},
		"another version of our value":                   {written, found("2", time.Minute, true), "last", false},
		"no sync state":                                  {nil, found("2", time.Minute, true), "theirs", true},
		"a lost write that was made":                     {lost("a", "b"), found("2", time.Hour, true), "a", false},
		"a lost write that cannot be read":               {lost("a", "b"), found("2", time.Hour, false), "", false},
		"a lost write, and a change":                     {lost("a", "b"), found("2", time.Minute, true), "theirs", true},
		"a lost write of an earlier version of ours":     {lost(), found("2", time.Hour, true), "a", false},
		"an older state, right after a write":            {justNow, found("0", time.Hour, true), "before", false},
		"a change right after a write":                   {justNow, found("2", 0, true), "theirs", true},
		"a change in the same millisecond as a write":    {had(func(it *state.Item) { it.WrittenAt = now.Add(time.Microsecond) }), found("2", 0, true), "theirs", true},
		"an older state, when reads show the last write": {written, found("0", 2*time.Hour, true), "before", true},
	} {
		v := View{
			Now: now, Desired: &Desired{Value: []byte("v"), Fingerprint: []byte("desired")}, LastApplied: c.had, Found: c.found, FoundFingerprint: []byte(c.print),
			OwnerTag: mine, HasOwnerTags: true, PropagationDelay: 20 * time.Second,
		}
		if got := v.Decide(); got.Do != Update || got.Overwrites != c.want {
			t.Errorf("%s: %+v, want an update that overwrites %v", name, got, c.want)
		}
		want := Update
		if c.want {
			want = Conflict
		}
		v.KeepChanges = true
		if got := v.Decide(); got.Do != want || got.Overwrites || c.want && got.OwnedThere {
			t.Errorf("%s: %+v, want %s", name, got, want)
		}
		v.Desired = nil
		if c.want {
			want = Retain
		} else {
			want = Delete
		}
		if got := v.Decide(); got.Do != want || got.Overwrites {
			t.Errorf("%s, not wanted: %+v, want %s", name, got, want)
		}
	}
}

// TestSameValue: an object is the same in any form, and everything else byte by byte.
func TestSameValue(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"v", "v", true},
		{"v", "w", false},
		{"1", "1.0", false},
		{`{"a":"1","b":2}`, "{ \"b\": 2,\n \"a\": \"1\" }", true},
		{`{"a":1}`, `{"a":1.0}`, false},
		{`{"a":"1"}`, `{"a":"1"} {}`, false},
		{`{"a":"1"}`, `{"a":"1","b":2}`, false},
		{"null", " null", false},
	} {
		if got := SameValue([]byte(test.a), []byte(test.b)); got != test.want {
			t.Errorf("SameValue(%q, %q) = %v", test.a, test.b, got)
		}
	}
}
