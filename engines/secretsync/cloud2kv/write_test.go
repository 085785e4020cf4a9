package cloud2kv

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

const mark = "instance-association"

func item(name, value string) destination.Item {
	return destination.Item{Name: name, Value: []byte(value), OwnerTag: mark, Token: strings.Repeat("t", 32)}
}

func write(t *testing.T, d destination.Destination, it destination.Item, was destination.Found) destination.Held {
	t.Helper()
	held, err := d.Write(t.Context(), it, was)
	if err != nil {
		t.Fatal(err)
	}
	return held
}

// during has f run once, at the moment when a request of the method arrives.
func (p *faultyVault) during(method string, f func()) {
	done := false
	p.Before(func(m, _ string) {
		if m == method && !done {
			done = true
			f()
		}
	})
}

// The vault cannot create only. The first of two clients keeps the name all the same.
func TestCreateYieldsToOneWhoWasFaster(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "name")
	p.during("PUT", func() {
		p.Vault.Put("name", "theirs", map[string]string{"owner": "them"})
		p.Change("name", true, "text/plain")
		p.Date("name", 1, 4e9)
	})
	_, err := v.Write(t.Context(), item("name", "ours"), was)
	if e := desttest.Fails(t, err, destination.Exists); !e.Unknown {
		t.Error("a version of ours was written")
	}
	if got, _ := p.Get(t, "name"); got != "theirs" {
		t.Error("their value is not what those who use the vault find")
	}
	if tags := p.Tags("name"); !maps.Equal(tags, map[string]string{"owner": "them"}) {
		t.Errorf("their tags are %v", tags)
	}
	if from, until := p.Dates("name"); from != 1 || until != 4e9 || p.ContentType("name") != "text/plain" {
		t.Errorf("it is to be used from %d until %d, and is of the type %q", from, until, p.ContentType("name"))
	}
	if f := desttest.Read(t, v, "name"); f.OwnerTag == mark {
		t.Error("the name is marked as ours")
	}
}

func TestCreateThatCannotPutBackSaysSo(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "name")
	writes := 0
	p.Before(func(method, _ string) {
		if method != "PUT" {
			return
		}
		if writes++; writes == 1 {
			p.Vault.Put("name", "theirs", nil)
		} else {
			p.Allow("get", "list")
		}
	})
	_, err := v.Write(t.Context(), item("name", "ours"), was)
	if e := desttest.Fails(t, err, destination.Exists); !strings.Contains(e.Text, "earlier version") || !e.Unknown {
		t.Errorf("%+v", e)
	}
	if !slices.Contains(p.Values("name"), "theirs") {
		t.Error("what they wrote is lost")
	}
}

// A write whose response was lost, and which a stale look did not see, is no race with another client.
func TestCreateKnowsItsOwnEarlierVersion(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "name")
	p.during("PUT", func() { p.Vault.Put("name", "ours-1", map[string]string{markTag: mark}) })
	write(t, v, item("name", "ours-2"), was)
	if got, _ := p.Get(t, "name"); got != "ours-2" {
		t.Errorf("the value is %s", got)
	}
}

func TestCreateWithoutListStillCreates(t *testing.T) {
	p := newFaultyVault(t)
	p.Allow("get", "set")
	v := p.Open(t)
	write(t, v, item("name", "ours"), desttest.Read(t, v, "name"))
}

func TestNamesDoNotDependOnCase(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "my-name")
	p.Vault.Put("My-Name", "theirs", nil)
	_, err := v.Write(t.Context(), item("my-name", "ours"), was)
	desttest.Fails(t, err, destination.Exists)
	if values := p.Values("my-name"); len(values) != 1 {
		t.Error("it was written for a moment")
	}
	if f := desttest.Read(t, v, "my-name"); f.Name != "My-Name" || f.State != destination.Present {
		t.Errorf("found %+v", f)
	}
}

// A deleted secret of another client is neither recovered nor written.
func TestDeletedSecretsOfOthersStayDeleted(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "name")
	p.Vault.Put("name", "theirs", nil)
	p.Remove("name")
	_, err := v.Write(t.Context(), item("name", "ours"), was)
	if e := desttest.Fails(t, err, destination.Exists); e.Unknown || !strings.Contains(e.Text, "purge") {
		t.Errorf("%+v", e)
	}
	if f := desttest.Read(t, v, "name"); f.State != destination.Deleted || f.OwnerTag != "" || f.Known {
		t.Errorf("found %+v", f)
	}
	if values := p.Values("name"); len(values) != 1 {
		t.Errorf("there are %d versions", len(values))
	}
}

// Told to, it recovers what another client has deleted, too.
func TestDeletedIsRecoveredWhenItIsToldTo(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	p.Vault.Put("name", "theirs", nil)
	p.Remove("name")
	p.Lag(2)
	write(t, v, item("name", "ours"), desttest.Read(t, v, "name"))
	if values := p.Values("name"); !slices.Equal(values, []string{"theirs", "ours"}) {
		t.Errorf("the versions are %v", values)
	}
}

// A secret that has just been deleted by us is written again: the vault is waited for.
func TestWriteWaitsForADeletion(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	write(t, v, item("name", "one"), desttest.Read(t, v, "name"))
	p.Lag(2)
	if err := v.Delete(t.Context(), desttest.Read(t, v, "name")); err != nil {
		t.Fatal(err)
	}
	was := desttest.Read(t, v, "name")
	if was.State != destination.Absent {
		t.Fatalf("the vault is still deleting, but found %+v", was)
	}
	held := write(t, v, item("name", "two"), was)
	if f := desttest.Read(t, v, "name"); f.Version != held.Version || string(f.Value) != "two" || f.OwnerTag != mark {
		t.Errorf("found %+v", f)
	}
}

func TestVaultThatIsNotDoneInTime(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t).(*vault)
	v.patience = 20 * time.Millisecond
	write(t, v, item("deleting", "one"), desttest.Read(t, v, "deleting"))
	write(t, v, item("recovering", "one"), desttest.Read(t, v, "recovering"))
	p.Remove("recovering")
	p.Lag(-1)
	if err := v.Delete(t.Context(), desttest.Read(t, v, "deleting")); err != nil {
		t.Fatal(err)
	}
	_, err := v.Write(t.Context(), item("deleting", "two"), desttest.Read(t, v, "deleting"))
	if e := desttest.Fails(t, err, destination.Recovering); e.Class != destination.External || e.Unknown {
		t.Errorf("%+v", e)
	}
	_, err = v.Write(t.Context(), item("recovering", "two"), desttest.Read(t, v, "recovering"))
	if e := desttest.Fails(t, err, destination.Recovering); e.Class != destination.External || !e.Unknown {
		t.Errorf("a part of it was done: %+v", e)
	}
	// Nor is more waited for than the caller wants.
	v.patience = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var tries atomic.Int32
	p.Before(func(_, path string) {
		if strings.Contains(path, "deletedsecrets") && tries.Add(1) == 2 {
			cancel() // the vault has said once that it is not done
		}
	})
	_, err = v.Write(ctx, item("deleting", "two"), destination.Found{Name: "deleting"})
	desttest.Fails(t, err, destination.Recovering)
	// While it goes on, a second deletion is fine.
	if err := v.Delete(t.Context(), destination.Found{Name: "deleting", State: destination.Present}); err != nil {
		t.Error(err)
	}
}

// Another client has begun to delete the secret at the same moment.
func TestDeletedByTwo(t *testing.T) {
	p := newFaultyVault(t)
	v, theirs := p.Open(t), p.Open(t)
	write(t, v, item("name", "one"), desttest.Read(t, v, "name"))
	was := desttest.Read(t, v, "name")
	p.Lag(-1)
	p.during("DELETE", func() {
		if err := theirs.Delete(t.Context(), was); err != nil {
			t.Error(err)
		}
	})
	if err := v.Delete(t.Context(), was); err != nil {
		t.Error(err)
	}
}

// Trouble at the look before a write is none of the write.
func TestTroubleBeforeTheWrite(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "name")
	p.Fail(desttest.Fault{Kind: desttest.Trouble})
	_, err := v.Write(t.Context(), item("name", "one"), was)
	if e := desttest.Fails(t, err, destination.Unavailable); e.Unknown {
		t.Error("nothing can have been written")
	}
}

func TestOldViewsDoNotWrite(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	write(t, v, item("name", "one"), desttest.Read(t, v, "name"))
	present := desttest.Read(t, v, "name")
	p.Vault.Put("name", "theirs", nil)
	_, err := v.Write(t.Context(), item("name", "two"), present)
	desttest.Fails(t, err, destination.Changed)
	desttest.Fails(t, v.Delete(t.Context(), present), destination.Changed)

	present = desttest.Read(t, v, "name")
	p.Remove("name")
	_, err = v.Write(t.Context(), item("name", "two"), present)
	desttest.Fails(t, err, destination.Changed)

	deleted := desttest.Read(t, v, "name")
	p.Vault.Put("name", "theirs again", nil)
	_, err = v.Write(t.Context(), item("name", "two"), deleted)
	desttest.Fails(t, err, destination.Changed)
	p.Remove("name")
	_, err = v.Write(t.Context(), item("name", "two"), deleted)
	desttest.Fails(t, err, destination.Changed)
	deleted = desttest.Read(t, v, "name")
	p.Purge("name")
	_, err = v.Write(t.Context(), item("name", "two"), deleted)
	desttest.Fails(t, err, destination.Changed)
	if names := p.Names(); len(names) != 0 {
		t.Errorf("there are %v", names)
	}
	if err := v.Delete(t.Context(), present); err != nil {
		t.Errorf("deleting what has gone: %v", err)
	}
}

// A client that recovers a secret and writes it between our reads is not overwritten.
func TestRecoveryYieldsToOneWhoWasFaster(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	write(t, v, item("name", "one"), desttest.Read(t, v, "name"))
	p.Remove("name")
	was := desttest.Read(t, v, "name")
	recovered := false
	p.Before(func(method, path string) {
		if recovered && method == "GET" && path == "/secrets/name/" {
			p.Before(nil)
			p.Vault.Put("name", "theirs", nil)
		}
		recovered = recovered || method == "POST"
	})
	_, err := v.Write(t.Context(), item("name", "two"), was)
	if e := desttest.Fails(t, err, destination.Changed); !e.Unknown {
		t.Error("it was recovered, which is a part of the write")
	}
	if got, _ := p.Get(t, "name"); got != "theirs" {
		t.Errorf("the value is %s", got)
	}
}

func TestSecretsOfCertificatesAreNotWritten(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "cert")
	p.Certificate("cert", map[string]string{markTag: mark + ".x"})
	if f := desttest.Read(t, v, "cert"); f.OwnerTag != "" {
		t.Error("it is taken for ours")
	}
	_, err := v.Write(t.Context(), item("cert", "ours"), was)
	desttest.Fails(t, err, destination.Exists)
	_, err = v.Write(t.Context(), item("cert", "ours"), desttest.Read(t, v, "cert"))
	desttest.Fails(t, err, destination.Exists)
	if values := p.Values("cert"); len(values) != 1 {
		t.Error("it was written")
	}
}

// A disabled secret cannot be read, but it is not mistaken for one that is as we left it.
func TestDisabledSecrets(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	write(t, v, item("name", "one"), desttest.Read(t, v, "name"))
	for range 20 {
		p.Vault.Put("name", "theirs", nil)
	}
	held := write(t, v, item("name", "two"), desttest.Read(t, v, "name"))
	p.Change("name", false, "")
	f := desttest.Read(t, v, "name")
	if f.State != destination.Present || f.Known || f.OwnerTag != mark || f.Version == held.Version || f.Version == "" {
		t.Errorf("found %+v", f)
	}
	held = write(t, v, item("name", "three"), f)
	if f := desttest.Read(t, v, "name"); f.Version != held.Version || string(f.Value) != "three" {
		t.Errorf("found %+v", f)
	}
	p.Change("name", false, "")
	p.Allow("get", "set", "delete")
	if f := desttest.Read(t, v, "name"); f.State != destination.Present || f.Known || f.OwnerTag != "" {
		t.Errorf("without the permission to list: %+v", f)
	}
	if err := v.Delete(t.Context(), desttest.Read(t, v, "name")); err != nil {
		t.Error(err)
	}
}

// tagsOf returns the tags of a secret, without the text behind the ownership tag that is another one every time.
func tagsOf(p *faultyVault, name string) map[string]string {
	tags := p.Tags(name)
	if value, ok := tags[markTag]; ok {
		tags[markTag], _, _ = strings.Cut(value, ".")
	}
	return tags
}

// What another client has put around the value stays there.
func TestTagsOfOthersStay(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	p.Vault.Put("name", "theirs", map[string]string{"cost-center": "42", "Team": "old", "stage": "old"})
	p.Change("name", true, "text/plain")
	it := item("name", "ours")
	it.Tags, it.OldTags = map[string]string{"team": "payments", "empty": ""}, []string{"stage", "never-was"}
	write(t, v, it, desttest.Read(t, v, "name"))
	want := map[string]string{"cost-center": "42", "team": "payments", "empty": "", markTag: mark}
	if tags := tagsOf(p, "name"); !maps.Equal(tags, want) {
		t.Errorf("the tags are %v", tags)
	}
	if kind := p.ContentType("name"); kind != "text/plain" {
		t.Errorf("the content type is %q", kind)
	}
	// Recovering keeps them, too.
	p.Remove("name")
	it.OldTags = []string{"empty"}
	it.Tags = map[string]string{"team": "accounts"}
	write(t, v, it, desttest.Read(t, v, "name"))
	if tags := tagsOf(p, "name"); !maps.Equal(tags, map[string]string{"cost-center": "42", "team": "accounts", markTag: mark}) {
		t.Errorf("the tags are %v", tags)
	}
}

func TestTooManyTags(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	it := item("name", "ours")
	it.Tags = map[string]string{}
	for i := range Type.Rules.MaxTags {
		it.Tags[fmt.Sprint("tag-", i)] = strings.Repeat("v", 256)
	}
	write(t, v, it, desttest.Read(t, v, "name"))
	p.Vault.Put("theirs", "theirs", map[string]string{"one": "1"})
	it.Name = "theirs"
	_, err := v.Write(t.Context(), it, desttest.Read(t, v, "theirs"))
	if e := desttest.Fails(t, err, destination.BadRequest); e.Class != destination.Client || !strings.Contains(e.Text, "15") {
		t.Errorf("%+v", e)
	}
}

// What the vault would not take is not sent to it.
func TestLimitsAreKeptBeforeTheCall(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "name")
	p.Calls()
	for what, test := range map[string]struct {
		it   destination.Item
		code string
		text string
	}{
		"a large value":  {item("name", strings.Repeat("v", 25601)), destination.TooLarge, "25600"},
		"letters":        {item("name", strings.Repeat("ä", 12801)), destination.TooLarge, "25602"},
		"bytes":          {item("name", "\xff\xfe"), destination.BadRequest, "UTF-8"},
		"a name":         {item("a_b", "v"), destination.BadRequest, "letters"},
		"a path":         {item("../keys/a", "v"), destination.BadRequest, "letters"},
		"no name":        {item("", "v"), destination.BadRequest, "empty"},
		"a long name":    {item(strings.Repeat("n", 128), "v"), destination.BadRequest, "127"},
		"the mark's tag": {destination.Item{Name: "name", OwnerTag: mark, Tags: map[string]string{"COFFER-SYNC": "x"}}, destination.BadRequest, "mark"},
	} {
		_, err := v.Write(t.Context(), test.it, was)
		if e := desttest.Fails(t, err, test.code); e.Class != destination.Client || e.Unknown || !strings.Contains(e.Text, test.text) {
			t.Errorf("%s: %+v", what, e)
		}
	}
	_, err := v.Read(t.Context(), "name/versions")
	desttest.Fails(t, err, destination.BadRequest)
	desttest.Fails(t, v.Delete(t.Context(), destination.Found{Name: "..", State: destination.Present}), destination.BadRequest)
	if calls := p.Calls(); len(calls) != 0 {
		t.Errorf("the vault was called: %v", calls)
	}
	write(t, v, item("empty", ""), desttest.Read(t, v, "empty"))
	if f := desttest.Read(t, v, "empty"); !f.Known || len(f.Value) != 0 {
		t.Errorf("an empty value: %+v", f)
	}
}

func TestListGoesThroughAllPages(t *testing.T) {
	p := newFaultyVault(t)
	p.PageSize(2)
	v := p.Open(t)
	write(t, v, item("ours", "v"), desttest.Read(t, v, "ours"))
	for i := range 4 {
		p.Vault.Put(fmt.Sprint("theirs-", i), "v", nil)
	}
	p.Certificate("cert", nil)
	p.Vault.Put("deleted", "v", nil)
	p.Remove("deleted")
	marks := map[string]string{}
	for f, err := range v.List(t.Context()) {
		if err != nil || f.Known {
			t.Fatal(f, err)
		}
		marks[f.Name] = f.OwnerTag
	}
	if want := map[string]string{"ours": mark, "theirs-0": "", "theirs-1": "", "theirs-2": "", "theirs-3": "", "cert": ""}; !maps.Equal(marks, want) {
		t.Errorf("listed %v", marks)
	}
	p.Fail(desttest.Fault{Kind: desttest.Throttle, RetryAfter: 3 * time.Second})
	n := 0
	for _, err := range v.List(t.Context()) {
		n++
		if e := desttest.Fails(t, err, destination.Throttled); e.RetryAfter != 3*time.Second {
			t.Errorf("%+v", e)
		}
	}
	if n != 1 {
		t.Errorf("%d errors", n)
	}
}

// Scans for drift have nothing but the list: it shows whatever has happened since our write.
func TestListShowsDrift(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	held := write(t, v, item("name", "one"), desttest.Read(t, v, "name"))
	listed := func() destination.Found {
		t.Helper()
		for f, err := range v.List(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		t.Fatal("it is not listed")
		return destination.Found{}
	}
	if f := listed(); f.Version != held.Version || f.OwnerTag != mark {
		t.Errorf("nothing has happened, but listed %+v; the write left %+v", f, held)
	}
	if again := write(t, v, item("name", "two"), desttest.Read(t, v, "name")); again.Version == held.Version {
		t.Error("two writes within a second look alike")
	} else {
		held = again
	}
	was := desttest.Read(t, v, "name")
	for what, happens := range map[string]func(){
		"another value within the second": func() { p.Vault.Put("name", "theirs", map[string]string{markTag: mark + ".x"}) },
		"another value without tags":      func() { p.Vault.Put("name", "theirs", nil) },
		"tags that were copied, later": func() {
			p.Advance(2 * time.Second)
			p.Vault.Put("name", "theirs", p.Tags("name"))
		},
		"disabled within the second": func() { p.Change("name", false, "") },
	} {
		held = write(t, v, item("name", "ours"), desttest.Read(t, v, "name"))
		happens()
		if f := listed(); f.Version == held.Version || f.Version == "" {
			t.Errorf("%s: not to be seen in the list", what)
		}
		if f := desttest.Read(t, v, "name"); f.Version != listed().Version {
			t.Errorf("%s: the list and a look differ", what)
		}
	}
	_, err := v.Write(t.Context(), item("name", "two"), was)
	desttest.Fails(t, err, destination.Changed)
}

// Even what looks the same is not overwritten, if the vault says that it is another version.
func TestCopiesWithinASecondAreNotOverwritten(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	write(t, v, item("name", "ours"), desttest.Read(t, v, "name"))
	was := desttest.Read(t, v, "name")
	was.Handle = handle("0123")
	_, err := v.Write(t.Context(), item("name", "two"), was)
	desttest.Fails(t, err, destination.Changed)
	desttest.Fails(t, v.Delete(t.Context(), was), destination.Changed)
}

// One token serves many calls, and its tenant may be given by its domain.
func TestTokensAreKept(t *testing.T) {
	p := newFaultyVault(t)
	c := config()
	c.TenantID = "example.onmicrosoft.com"
	v := opened(t, c, destination.Env{Client: p.Client()})
	for range 5 {
		desttest.Read(t, v, "name")
	}
	if n := p.Issued(); n != 1 {
		t.Errorf("%d tokens were issued", n)
	}
}

// A token that is not taken any more, though it has not ended, is replaced, and what was asked is done.
func TestRefusedTokensAreReplaced(t *testing.T) {
	p := newFaultyVault(t)
	v := p.Open(t)
	was := desttest.Read(t, v, "name")
	p.Revoke()
	write(t, v, item("name", "one"), was)
	if got, _ := p.Get(t, "name"); got != "one" || len(p.Values("name")) != 1 {
		t.Errorf("%q is there, of %d versions", got, len(p.Values("name")))
	}
	if n := p.Issued(); n != 2 {
		t.Errorf("%d tokens were issued", n)
	}
}
