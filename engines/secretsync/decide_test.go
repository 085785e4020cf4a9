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
	value := &Desired{Value: []byte("v"), Fingerprint: []byte("print")}
	owned := Item{Name: "n", Owned: true, ID: "id", Version: "1", Fingerprint: []byte("print"), WrittenAt: now.Add(-time.Hour)}
	with := func(change func(*Item)) *Item { it := owned; change(&it); return &it }
	intended := func(at time.Time, create, owned bool) *Item {
		return with(func(it *Item) { it.Owned, it.Intent = owned, &Intent{At: at, Create: create} })
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
		View
		want string
		ours bool
	}{
		"nothing there, nothing known":                 {View{Desired: value, Found: absent}, actCreate, false},
		"nothing there any more":                       {View{Desired: value, LastApplied: &owned, Found: absent}, actCreate, false},
		"nothing there, deleted there was no mark":     {View{Desired: value, Found: deleted(""), HasOwnerTags: true}, actConflict, false},
		"somebody else's, plain":                       {View{Desired: value, Found: plain}, actConflict, false},
		"somebody else's, marked":                      {View{Desired: value, Found: marked("", "v"), HasOwnerTags: true}, actConflict, false},
		"a stranger's mark, though the ledger says":    {View{Desired: value, LastApplied: &owned, Found: marked(stranger, "v"), HasOwnerTags: true}, actConflict, false},
		"a mark that went":                             {View{Desired: value, LastApplied: &owned, Found: marked("", "v"), HasOwnerTags: true}, actConflict, false},
		"a sibling's":                                  {View{Desired: value, Found: marked(sibling, "v"), HasOwnerTags: true}, actConflict, false},
		"our mark, the ledger lost":                    {View{Desired: value, Found: marked(mine, "v"), HasOwnerTags: true}, actNone, true},
		"our mark, the same value":                     {View{Desired: value, LastApplied: &owned, Found: marked(mine, "v"), HasOwnerTags: true}, actNone, true},
		"our mark, another value":                      {View{Desired: value, LastApplied: &owned, Found: marked(mine, "x"), HasOwnerTags: true}, actUpdate, true},
		"our mark, deleted":                            {View{Desired: value, LastApplied: &owned, Found: deleted(mine), HasOwnerTags: true}, actRecover, true},
		"deleted by a sibling that gave it up":         {View{Desired: value, Found: deleted(sibling), HasOwnerTags: true}, actRecover, true},
		"deleted by a stranger":                        {View{Desired: value, Found: deleted(stranger), HasOwnerTags: true}, actConflict, false},
		"adopted from somebody":                        {View{Desired: value, Found: plain, Adopt: true}, actAdopt, false},
		"adopted from a stranger, deleted":             {View{Desired: value, Found: deleted(stranger), HasOwnerTags: true, Adopt: true}, actAdopt, false},
		"adopt what is ours anyhow":                    {View{Desired: value, LastApplied: &owned, Found: plain, Adopt: true}, actNone, true},
		"unreadable, our last write":                   {View{Desired: value, LastApplied: &owned, Found: plain}, actNone, true},
		"unreadable, another value wanted":             {View{Desired: value, LastApplied: with(func(it *Item) { it.Fingerprint = []byte("other") }), Found: plain}, actUpdate, true},
		"unreadable, changed by somebody":              {View{Desired: value, LastApplied: &owned, Found: there(func(f *destination.Found) { f.Version = "2" })}, actConflict, false},
		"unreadable, changed, to be repaired":          {View{Desired: value, LastApplied: &owned, Found: there(func(f *destination.Found) { f.Version = "2" }), Repair: true}, actUpdate, true},
		"unreadable, made anew, even to be repaired":   {View{Desired: value, LastApplied: &owned, Found: there(func(f *destination.Found) { f.ID = "id2" }), Repair: true}, actConflict, false},
		"a lost create that was made":                  {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now.Add(time.Second) })}, actUpdate, true},
		"a lost create, their clock is behind":         {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-time.Minute) })}, actUpdate, true},
		"a lost create, but theirs was before":         {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-maxClockLag) })}, actConflict, false},
		"a lost create, but theirs came much later":    {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(maxWriteDelay) })}, actConflict, false},
		"a lost create, and the place tells no time":   {View{Desired: value, LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = time.Time{} })}, actConflict, false},
		"a lost update that was made":                  {View{Desired: value, LastApplied: intended(now, false, true), Found: there(func(f *destination.Found) { f.Version, f.ChangedAt = "2", now })}, actUpdate, true},
		"a lost update that was not made":              {View{Desired: value, LastApplied: intended(now, false, true), Found: plain}, actUpdate, true},
		"a lost update, and it was made anew":          {View{Desired: value, LastApplied: intended(now, false, true), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now })}, actConflict, false},
		"a lost create of what we had":                 {View{Desired: value, LastApplied: intended(now, true, true), Found: there(func(f *destination.Found) { f.ID, f.ChangedAt = "id2", now })}, actUpdate, true},
		"not wanted, ours":                             {View{LastApplied: &owned, Found: plain}, actDelete, true},
		"not wanted, our mark, changed by somebody":    {View{LastApplied: &owned, Found: marked(mine, "x"), HasOwnerTags: true}, actDelete, true},
		"not wanted, changed by somebody, no marks":    {View{LastApplied: &owned, Found: there(func(f *destination.Found) { f.Version = "2" })}, actForget, false},
		"not wanted, changed, to be repaired":          {View{LastApplied: &owned, Found: there(func(f *destination.Found) { f.Version = "2" }), Repair: true}, actForget, false},
		"not wanted, somebody else's mark":             {View{LastApplied: &owned, Found: marked(stranger, "x"), HasOwnerTags: true}, actForget, false},
		"not wanted, retained":                         {View{LastApplied: &owned, Found: plain, Retain: true}, actRetain, false},
		"not wanted, retained, and the end":            {View{LastApplied: &owned, Found: plain, Retain: true, Ending: true}, actForget, false},
		"not wanted, gone":                             {View{LastApplied: &owned, Found: absent}, actForget, false},
		"not wanted, deleted":                          {View{LastApplied: &owned, Found: deleted(mine), HasOwnerTags: true}, actForget, false},
		"not wanted, written just now and not shown":   {View{LastApplied: with(func(it *Item) { it.WrittenAt = now }), Found: absent}, actWait, false},
		"not wanted, written a while ago, not shown":   {View{LastApplied: with(func(it *Item) { it.WrittenAt = now.Add(-15 * time.Second) }), Found: absent}, actWait, false},
		"not wanted, perhaps written and not shown":    {View{LastApplied: intended(now.Add(-30*time.Second), true, false), Found: absent}, actWait, false},
		"not wanted, perhaps written, long ago":        {View{LastApplied: intended(now.Add(-unknownOutcomeWindow), true, false), Found: absent}, actForget, false},
		"not wanted, retained, and written just now":   {View{LastApplied: with(func(it *Item) { it.WrittenAt = now }), Found: absent, Retain: true}, actRetain, false},
		"not wanted, a lost create that was made":      {View{LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now })}, actDelete, true},
		"not wanted, a lost create, and it is theirs ": {View{LastApplied: intended(now, true, false), Found: there(func(f *destination.Found) { f.ChangedAt = now.Add(-time.Hour) })}, actForget, false},
	} {
		c.OwnerTag, c.Now, c.PropagationDelay = mine, now, 20*time.Second
		got := c.Decide()
		if got.Do != c.want || got.OwnedThere != c.ours || got.Reason == "" {
			t.Errorf("%s: %+v, want %q (ours: %v)", name, got, c.want, c.ours)
		}
	}
}

func TestSummaryIsTheWorst(t *testing.T) {
	of := func(all ...string) (items []Item) {
		for _, status := range all {
			items = append(items, Item{Outcome: Outcome{Status: status}})
		}
		return items
	}
	for _, c := range []struct {
		items []Item
		live  bool
		want  string
	}{
		{nil, true, Synced}, {nil, false, Unsynced}, {of(Synced, Synced), true, Synced}, {of(Synced, Conflict, Synced), true, Conflict},
		{of(ExternalError, Pending), true, ExternalError}, {of(Unsyncing, Synced), false, Unsyncing}, {of(ClientError, InternalError, Conflict), true, InternalError},
	} {
		if got := worstOutcome(c.items, c.live); got.Status != c.want {
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
			if got := backoff(Outcome{Status: c.status}, c.attempts); got < c.most/2 || got > c.most {
				t.Errorf("%s, attempt %d: %v, want %v to %v", c.status, c.attempts, got, c.most/2, c.most)
			}
		}
	}
}
