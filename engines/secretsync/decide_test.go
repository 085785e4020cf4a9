package secretsync

import (
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

func TestDecide(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	const (
		mine     = "installation-association"
		sibling  = "installation-another"
		stranger = "elsewhere-association"
	)
	value := &wanted{Value: []byte("v"), Print: []byte("print")}
	owned := item{Name: "n", Owned: true, ID: "id", Version: "1", Print: []byte("print"), WrittenAt: now.Add(-time.Hour)}
	with := func(change func(*item)) *item { it := owned; change(&it); return &it }
	intended := func(at time.Time, create, owned bool) *item {
		return with(func(it *item) { it.Owned, it.Intent = owned, &intent{At: at, Create: create} })
	}
	there := func(change func(*destination.Found)) destination.Found {
		f := destination.Found{Name: "n", State: destination.Present, ID: "id", Version: "1", ChangedAt: now.Add(-time.Hour)}
		change(&f)
		return f
	}
	plain := there(func(*destination.Found) {})
	marked := func(mark, value string) destination.Found {
		return there(func(f *destination.Found) { f.Mark, f.Value, f.Known = mark, []byte(value), true })
	}
	deleted := func(mark string) destination.Found {
		return there(func(f *destination.Found) { f.State, f.Mark = destination.Deleted, mark })
	}
	absent := destination.Found{Name: "n"}
	for name, c := range map[string]struct {
		view
		want string
		ours bool
	}{
		"nothing there, nothing known":                 {view{Want: value, Found: absent}, actCreate, false},
		"nothing there any more":                       {view{Want: value, Had: &owned, Found: absent}, actCreate, false},
		"nothing there, deleted there was no mark":     {view{Want: value, Found: deleted(""), Marks: true}, actConflict, false},
		"somebody else's, plain":                       {view{Want: value, Found: plain}, actConflict, false},
		"somebody else's, marked":                      {view{Want: value, Found: marked("", "v"), Marks: true}, actConflict, false},
		"a stranger's mark, though the ledger says":    {view{Want: value, Had: &owned, Found: marked(stranger, "v"), Marks: true}, actConflict, false},
		"a mark that went":                             {view{Want: value, Had: &owned, Found: marked("", "v"), Marks: true}, actConflict, false},
		"a sibling's":                                  {view{Want: value, Found: marked(sibling, "v"), Marks: true}, actConflict, false},
		"our mark, the ledger lost":                    {view{Want: value, Found: marked(mine, "v"), Marks: true}, actNone, true},
		"our mark, the same value":                     {view{Want: value, Had: &owned, Found: marked(mine, "v"), Marks: true}, actNone, true},
		"our mark, another value":                      {view{Want: value, Had: &owned, Found: marked(mine, "x"), Marks: true}, actUpdate, true},
		"our mark, deleted":                            {view{Want: value, Had: &owned, Found: deleted(mine), Marks: true}, actRecover, true},
		"deleted by a sibling that gave it up":         {view{Want: value, Found: deleted(sibling), Marks: true}, actRecover, true},
		"deleted by a stranger":                        {view{Want: value, Found: deleted(stranger), Marks: true}, actConflict, false},
		"adopted from somebody":                        {view{Want: value, Found: plain, Adopt: true}, actAdopt, false},
		"adopted from a stranger, deleted":             {view{Want: value, Found: deleted(stranger), Marks: true, Adopt: true}, actAdopt, false},
		"adopt what is ours anyhow":                    {view{Want: value, Had: &owned, Found: plain, Adopt: true}, actNone, true},
		"unreadable, our last write":                   {view{Want: value, Had: &owned, Found: plain}, actNone, true},
		"unreadable, another value wanted":             {view{Want: value, Had: with(func(it *item) { it.Print = []byte("other") }), Found: plain}, actUpdate, true},
		"unreadable, changed by somebody":              {view{Want: value, Had: &owned, Found: there(func(f *destination.Found) { f.Version = "2" })}, actConflict, false},
		"unreadable, changed, to be repaired":          {view{Want: value, Had: &owned, Found: there(func(f *destination.Found) { f.Version = "2" }), Repair: true}, actUpdate, true},
		"unreadable, made anew, even to be repaired":   {view{Want: value, Had: &owned, Found: there(func(f *destination.Found) { f.ID = "id2" }), Repair: true}, actConflict, false},
		"a lost create that was made":                  {view{Want: value, Had: intended(now, true, false), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now.Add(time.Second) })}, actUpdate, true},
		"a lost create, their clock is behind":         {view{Want: value, Had: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-time.Minute) })}, actUpdate, true},
		"a lost create, but theirs was before":         {view{Want: value, Had: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-behind) })}, actConflict, false},
		"a lost create, but theirs came much later":    {view{Want: value, Had: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(late) })}, actConflict, false},
		"a lost create, and the place tells no time":   {view{Want: value, Had: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = time.Time{} })}, actConflict, false},
		"a lost update that was made":                  {view{Want: value, Had: intended(now, false, true), Found: there(func(f *destination.Found) { f.Version, f.ChangedAt = "2", now })}, actUpdate, true},
		"a lost update that was not made":              {view{Want: value, Had: intended(now, false, true), Found: plain}, actUpdate, true},
		"a lost update, and it was made anew":          {view{Want: value, Had: intended(now, false, true), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now })}, actConflict, false},
		"a lost create of what we had":                 {view{Want: value, Had: intended(now, true, true), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now })}, actUpdate, true},
		"not wanted, ours":                             {view{Had: &owned, Found: plain}, actDelete, true},
		"not wanted, our mark, changed by somebody":    {view{Had: &owned, Found: marked(mine, "x"), Marks: true}, actDelete, true},
		"not wanted, changed by somebody, no marks":    {view{Had: &owned, Found: there(func(f *destination.Found) { f.Version = "2" })}, actForget, false},
		"not wanted, changed, to be repaired":          {view{Had: &owned, Found: there(func(f *destination.Found) { f.Version = "2" }), Repair: true}, actForget, false},
		"not wanted, somebody else's mark":             {view{Had: &owned, Found: marked(stranger, "x"), Marks: true}, actForget, false},
		"not wanted, retained":                         {view{Had: &owned, Found: plain, Retain: true}, actRetain, false},
		"not wanted, retained, and the end":            {view{Had: &owned, Found: plain, Retain: true, Ending: true}, actForget, false},
		"not wanted, gone":                             {view{Had: &owned, Found: absent}, actForget, false},
		"not wanted, deleted":                          {view{Had: &owned, Found: deleted(mine), Marks: true}, actForget, false},
		"not wanted, written just now and not shown":   {view{Had: with(func(it *item) { it.WrittenAt = now }), Found: absent}, actWait, false},
		"not wanted, written a while ago, not shown":   {view{Had: with(func(it *item) { it.WrittenAt = now.Add(-15 * time.Second) }), Found: absent}, actWait, false},
		"not wanted, perhaps written and not shown":    {view{Had: intended(now.Add(-30*time.Second), true, false), Found: absent}, actWait, false},
		"not wanted, perhaps written, long ago":        {view{Had: intended(now.Add(-uncertain), true, false), Found: absent}, actForget, false},
		"not wanted, retained, and written just now":   {view{Had: with(func(it *item) { it.WrittenAt = now }), Found: absent, Retain: true}, actRetain, false},
		"not wanted, a lost create that was made":      {view{Had: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now })}, actDelete, true},
		"not wanted, a lost create, and it is theirs ": {view{Had: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-time.Hour) })}, actForget, false},
	} {
		c.Mark, c.Now, c.Settles = mine, now, 20*time.Second
		got := c.decide()
		if got.Do != c.want || got.Ours != c.ours || got.Reason == "" {
			t.Errorf("%s: %+v, want %q (ours: %v)", name, got, c.want, c.ours)
		}
	}
}

func TestSummaryIsTheWorst(t *testing.T) {
	of := func(all ...string) (items []item) {
		for _, status := range all {
			items = append(items, item{outcome: outcome{Status: status}})
		}
		return items
	}
	for _, c := range []struct {
		items []item
		live  bool
		want  string
	}{
		{nil, true, Synced}, {nil, false, Unsynced}, {of(Synced, Synced), true, Synced}, {of(Synced, Conflict, Synced), true, Conflict},
		{of(ExternalError, Pending), true, ExternalError}, {of(Unsyncing, Synced), false, Unsyncing}, {of(ClientError, InternalError, Conflict), true, InternalError},
	} {
		if got := summary(c.items, c.live); got.Status != c.want {
			t.Errorf("%v: %s, want %s", c.items, got.Status, c.want)
		}
	}
}

func TestBackoffGrowsAndEnds(t *testing.T) {
	for _, c := range []struct {
		status   string
		attempts int
		most     time.Duration
	}{
		{ExternalError, 1, 5 * time.Second}, {ExternalError, 2, 10 * time.Second}, {ExternalError, 1000, 5 * time.Minute},
		{ClientError, 1, time.Minute}, {Conflict, 1, time.Minute}, {Conflict, 50, time.Hour}, {Unsyncing, 1, 5 * time.Second},
	} {
		for range 20 {
			if got := backoff(outcome{Status: c.status}, c.attempts); got < c.most/2 || got > c.most {
				t.Errorf("%s, attempt %d: %v, want %v to %v", c.status, c.attempts, got, c.most/2, c.most)
			}
		}
	}
}
