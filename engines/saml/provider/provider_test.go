package provider

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/enginetest"
	"github.com/coffer-project/coffer/engines/saml/idp"
	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/storage"
)

// source is where metadata comes from.
type source struct {
	mu       sync.Mutex
	document string
	err      error
	hold     chan struct{} // fetches wait until it is closed; nil: they do not
	calls    int
	urls     []string
}

func (s *source) fetch(ctx context.Context, url string) ([]byte, error) {
	s.mu.Lock()
	s.calls++
	s.urls = append(s.urls, url)
	document, err, hold := s.document, s.err, s.hold
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return []byte(document), err
}

func (s *source) set(document string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.document, s.err = document, err
}

// block lets fetches wait until release is called.
func (s *source) block() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hold := make(chan struct{}) // closed by release
	s.hold = hold
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hold = nil
		close(hold)
	}
}

// providerTest is a configured mount on one node, and where its metadata comes from.
type providerTest struct {
	*source
	t     *testing.T
	mount *enginetest.Mount
	conf  *Config
	log   *bytes.Buffer // read it when nothing runs
	count *atomic.Int64 // of fetches that failed
}

func newProviderTest(t *testing.T, p *samltest.IdP) *providerTest {
	t.Helper()
	pt := &providerTest{source: &source{}, t: t, log: new(bytes.Buffer), count: new(atomic.Int64)}
	logger := slog.New(slog.NewTextHandler(pt.log, nil))
	pt.mount = enginetest.New(t, build(logger, pt.count), enginetest.Options{Type: "saml", Path: "auth/saml/"})
	pt.engine().FetchMetadata = pt.fetch
	pt.set(string(p.MetadataXML()), nil)
	pt.write(byMetadata)
	return pt
}

func (pt *providerTest) engine() *Provider { return pt.mount.Engine.(only).Provider }

// write changes the configuration.
func (pt *providerTest) write(in settings) {
	pt.t.Helper()
	pt.mount.Must(engines.Update, "config", in)
	c, err := GetConfig(pt.t.Context(), pt.mount.Mount.Storage)
	if err != nil {
		pt.t.Fatal(err)
	}
	pt.conf = c
}

// peer is the same mount on another node, with the same source.
func (pt *providerTest) peer() *providerTest {
	other := *pt
	other.mount = pt.mount.Peer()
	other.engine().FetchMetadata = pt.fetch
	return &other
}

func (pt *providerTest) provider() (*idp.Descriptor, error) {
	return pt.engine().Descriptor(pt.t.Context(), pt.mount.Mount, pt.conf)
}

// must returns the provider, once everything that this set off is done.
func (pt *providerTest) must() *idp.Descriptor {
	pt.t.Helper()
	d, err := pt.provider()
	if err != nil {
		pt.t.Fatalf("provider: %v", err)
	}
	synctest.Wait()
	return d
}

// fails checks that there is no provider.
func (pt *providerTest) fails() error {
	pt.t.Helper()
	d, err := pt.provider()
	synctest.Wait()
	e, ok := errors.AsType[*engines.Error](err)
	if !ok || e.Kind != engines.KindUpstream || strings.Contains(e.Detail, "idp.example.com") {
		pt.t.Fatalf("provider = %v, %v; want an error of KindUpstream that does not name it", d, err)
	}
	return e
}

func (pt *providerTest) newer(old *idp.Descriptor) *idp.Descriptor {
	pt.t.Helper()
	d, err := pt.engine().Newer(pt.t.Context(), pt.mount.Mount, pt.conf, old)
	if err != nil {
		pt.t.Fatalf("newerProvider: %v", err)
	}
	return d
}

func (pt *providerTest) wantCalls(n int) {
	pt.t.Helper()
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.calls != n {
		pt.t.Fatalf("fetched %d times, want %d", pt.calls, n)
	}
}

var errAway = errors.New("no route to the provider")

// key returns one of several keys of providers.
func key(n int) samltest.Option { return samltest.WithKey(samltest.NewKey(samltest.P256, n)) }

func metadataOf(t *testing.T, attributes string, opts ...samltest.Option) string {
	return strings.Replace(string(samltest.New(t, opts...).MetadataXML()), "<md:EntityDescriptor", "<md:EntityDescriptor "+attributes, 1)
}

func TestMetadataIsFetchedLazilyAndKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := samltest.New(t, key(0))
		pt := newProviderTest(t, p)
		pt.wantCalls(0)
		d := pt.must()
		if d.EntityID != p.EntityID || d.SSOURL != p.SSOURL || !d.Has(p.Key.Certificate) {
			t.Errorf("provider = %+v", d)
		}
		for range 10 {
			time.Sleep(5 * time.Minute)
			if pt.must() != d {
				t.Error("another descriptor, though nothing was fetched")
			}
		}
		pt.wantCalls(1)
		if pt.urls[0] != testSource {
			t.Errorf("fetched %s", pt.urls[0])
		}
	})
}

func TestExplicitProviderNeedsNoFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := samltest.New(t, key(0), samltest.WithNext(samltest.NewKey(samltest.P256, 1)))
		pt := newProviderTest(t, p)
		pt.write(explicitFields(p))
		d := pt.must()
		if d.EntityID != p.EntityID || d.SSOURL != p.SSOURL || !d.Has(p.Key.Certificate) || !d.Has(p.Next[0].Certificate) || d.WantsSignedRequests {
			t.Errorf("provider = %+v", d)
		}
		if pt.must() != d {
			t.Error("parsed again, though nothing changed")
		}
		if pt.newer(d) != nil {
			t.Error("something newer than explicit fields")
		}
		pt.write(settings{"idp_sso_url": "https://idp.example.com/other"})
		if d := pt.must(); d.SSOURL != "https://idp.example.com/other" {
			t.Errorf("after a change: %s", d.SSOURL)
		}
		pt.write(settings{"idp_cert": samltest.New(t, key(2)).CertificatePEM()})
		if d := pt.must(); d.Has(p.Key.Certificate) || !d.Has(samltest.NewKey(samltest.P256, 2).Certificate) {
			t.Error("the old certificates outlive a change")
		}
		pt.wantCalls(0)
	})
}

func TestWaitingLoginsShareOneFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		release := pt.block()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := pt.engine().Descriptor(ctx, pt.mount.Mount, pt.conf)
			gone <- err
		}()
		got := make([]*idp.Descriptor, 20)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() { got[i], _ = pt.provider() })
		}
		synctest.Wait()
		pt.wantCalls(1)
		cancel() // who began it may leave: the others still want it
		if err := <-gone; err == nil {
			t.Error("a login goes on after its client left")
		}
		release()
		wg.Wait()
		for _, d := range got {
			if d == nil || d != got[0] {
				t.Errorf("got %v, want %v", d, got[0])
			}
		}
		pt.wantCalls(1)
	})
}

func TestRefreshIntervals(t *testing.T) {
	tests := []struct {
		attributes string
		want       time.Duration
	}{
		{``, time.Hour},
		{`cacheDuration="PT1S"`, 5 * time.Minute},
		{`cacheDuration="PT2H"`, 2 * time.Hour},
		{`cacheDuration="P7D"`, 24 * time.Hour},
		{`cacheDuration="P7D" validUntil="2000-01-01T06:00:00Z"`, 3 * time.Hour}, // a bubble begins with 2000
		{`validUntil="2000-01-01T00:08:00Z"`, 5 * time.Minute},
	}
	for _, tt := range tests {
		t.Run(tt.attributes, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pt := newProviderTest(t, samltest.New(t))
				pt.set(metadataOf(t, tt.attributes, key(0)), nil)
				first := pt.must()
				time.Sleep(tt.want - time.Second)
				pt.must()
				pt.wantCalls(1)
				time.Sleep(time.Second)
				pt.set(metadataOf(t, tt.attributes, key(1)), nil)
				if pt.must() == first {
					t.Error("a login did not wait for the refresh")
				}
				pt.wantCalls(2)
				pt.must()
				pt.wantCalls(2)
			})
		})
	}
}

// TestLoginsWaitForARefresh: no user logs in by a copy that is overdue while the fetch runs, or a removed certificate would be
// good for the first request.
func TestLoginsWaitForARefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		pt.must()
		time.Sleep(2 * time.Hour)
		pt.set(metadataOf(t, "", key(1)), nil)
		release := pt.block()
		got := make([]*idp.Descriptor, 5)
		var all sync.WaitGroup
		for i := range got {
			all.Go(func() { got[i], _ = pt.provider() })
		}
		synctest.Wait()
		pt.wantCalls(2)
		release()
		all.Wait()
		for _, d := range got {
			if d == nil || !d.Has(samltest.NewKey(samltest.P256, 1).Certificate) || d.Has(samltest.NewKey(samltest.P256, 0).Certificate) {
				t.Errorf("a login went by %+v", d)
			}
		}
		pt.wantCalls(2)
	})
}

// TestLoginsWaitForAFetchUnderWay: also while the copy is not due.
func TestLoginsWaitForAFetchUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		pt.must()
		pt.set(metadataOf(t, "", key(1)), nil)
		release := pt.block()
		var all sync.WaitGroup
		all.Go(func() { pt.mount.Must(engines.Update, "config/verify", nil) })
		synctest.Wait()
		all.Go(func() {
			if d, err := pt.provider(); err != nil || d.Has(samltest.NewKey(samltest.P256, 0).Certificate) {
				t.Errorf("a login went by %+v, %v", d, err)
			}
		})
		synctest.Wait()
		release()
		all.Wait()
	})
}

// TestVerifyIsOfAllNodesAndClusters: what is verified counts wherever the configuration is, at once, whatever was fetched there.
func TestVerifyIsOfAllNodesAndClusters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		old := samltest.NewKey(samltest.P256, 0).Certificate
		node, cluster := pt.peer(), pt.peer()
		cluster.mount.Mount.ClusterStorage = enginetest.New(t, build(slog.New(slog.DiscardHandler), new(atomic.Int64)), enginetest.Options{Type: "saml", Path: "auth/saml/"}).Mount.ClusterStorage
		all := []*providerTest{pt, node, cluster}
		for _, at := range all {
			if !at.must().Has(old) {
				t.Fatal("the first key is not known")
			}
		}
		for n := 1; n < 4; n++ {
			at := all[n%2] // of the first cluster
			pt.set(metadataOf(t, "", key(n)), nil)
			at.mount.Must(engines.Update, "config/verify", nil)
			pt.set(metadataOf(t, "", key(0)), nil) // it was not fetched again
			for i, other := range all {
				if d := other.must(); d.Has(old) || !d.Has(samltest.NewKey(samltest.P256, n).Certificate) {
					t.Errorf("after verifying %d: node %d goes by %v", n, i, describe(d))
				}
			}
		}
		// What a cluster fetches later is newer than what was verified.
		time.Sleep(2 * time.Hour)
		pt.set(metadataOf(t, "", key(4)), nil)
		for i, other := range all {
			if d := other.must(); !d.Has(samltest.NewKey(samltest.P256, 4).Certificate) {
				t.Errorf("node %d goes by %v", i, describe(d))
			}
		}
		// Another URL forgets it.
		pt.write(settings{"idp_metadata_url": "https://other.example.com/metadata"})
		for k := range pt.mount.Snapshot() {
			if strings.HasSuffix(string(k), string(verifiedKey)) {
				t.Errorf("still there: %s", k)
			}
		}
	})
}

// TestVerifyTakesNoEarlierFetch: a fetch that began before may have got what the provider has changed since.
func TestVerifyTakesNoEarlierFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		release := pt.block()
		go pt.provider()
		synctest.Wait()
		var all sync.WaitGroup
		all.Go(func() { pt.mount.Must(engines.Update, "config/verify", nil) })
		synctest.Wait()
		pt.set(metadataOf(t, "", key(1)), nil)
		release()
		all.Wait()
		if d := pt.must(); d.Has(samltest.NewKey(samltest.P256, 0).Certificate) {
			t.Error("verified what was fetched before")
		}
	})
}

func TestARefreshThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		pt.must()
		time.Sleep(2 * time.Hour)
		pt.block()
		pt.must() // waits
		pt.must() // does not, for a while
		if pt.engine().flight != nil || pt.count.Load() != 1 {
			t.Error("the refresh still runs")
		}
	})
}

func TestLastGoodCopyServesWhileTheProviderIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		first := pt.must()
		for _, broken := range []struct {
			document string
			err      error
		}{{"", errAway}, {"<html/>", nil}} {
			pt.set(broken.document, broken.err)
			pt.log.Reset()
			before := pt.count.Load()
			for range 24 * 60 {
				time.Sleep(time.Minute)
				if pt.must() != first {
					t.Fatal("the good copy is gone")
				}
			}
			failures := pt.count.Load() - before
			if failures < 20 || failures > 40 {
				t.Errorf("%d attempts in a day of a login each minute, want about one an hour", failures)
			}
			if lines := strings.Count(pt.log.String(), "level=WARN"); int64(lines) != failures {
				t.Errorf("%d warnings for %d failures", lines, failures)
			}
		}
		if !strings.Contains(pt.log.String(), "HTML page") || !strings.Contains(pt.log.String(), "serving_copy_of") {
			t.Errorf("the warnings do not say what is wrong: %.300s", pt.log)
		}
		pt.set(metadataOf(t, "", key(1)), nil)
		time.Sleep(retryMax)
		pt.must()
		if pt.must() == first || pt.engine().attempts.failures != 0 {
			t.Error("no recovery after the provider came back")
		}
	})
}

func TestACopyServesUntilItsEndOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t))
		pt.set(metadataOf(t, `validUntil="2000-01-01T06:00:00Z"`, key(0)), nil)
		pt.must()
		pt.set("", errAway)
		time.Sleep(6*time.Hour - time.Second)
		pt.must()
		time.Sleep(time.Second)
		if err := pt.fails(); !errors.Is(err, errAway) {
			t.Errorf("the cause is lost: %v", err)
		}
		if old := pt.peer(); old.fails() == nil {
			t.Error("the kept copy has no end")
		}
		pt.set(metadataOf(t, `validUntil="2000-01-01T06:00:00Z"`, key(0)), nil)
		time.Sleep(retryWaiting)
		if err := pt.fails(); !strings.Contains(err.Error(), "valid until 2000-01-01T06:00:00Z only") {
			t.Errorf("metadata that has ended: %v", err)
		}
		pt.set(metadataOf(t, `validUntil="2000-01-02T06:00:00Z"`, key(0)), nil)
		time.Sleep(retryWaiting)
		pt.must()
	})
}

// TestFailuresAreNotRetriedByEveryLogin: without any copy, logins that come soon after a failure get its error.
func TestFailuresAreNotRetriedByEveryLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		good := pt.document
		pt.set("", errAway)
		for range 9 {
			pt.fails()
			time.Sleep(time.Second)
		}
		pt.wantCalls(1)
		pt.set(good, nil)
		pt.fails()
		time.Sleep(time.Second)
		pt.must()
		pt.wantCalls(2)
		if n := pt.count.Load(); n != 1 {
			t.Errorf("%d failures are counted, want 1", n)
		}
	})
}

func TestANewActiveNodeNeedsNoProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := samltest.New(t, key(0), samltest.WithNext(samltest.NewKey(samltest.P256, 1)))
		p.WantsSignedRequests = true
		pt := newProviderTest(t, p)
		pt.set(strings.Replace(pt.document, "<md:EntityDescriptor", `<md:EntityDescriptor cacheDuration="PT2H" validUntil="2000-03-01T00:00:00Z"`, 1), nil)
		first := pt.must()
		pt.set("", errAway)
		other := pt.peer()
		d := other.must()
		pt.wantCalls(1)
		if fmt.Sprint(describe(d)) != fmt.Sprint(describe(first)) {
			t.Errorf("the kept copy is %v, want %v", describe(d), describe(first))
		}
		// What the other node fetches is found by this one, when it becomes the active one again.
		time.Sleep(3 * time.Hour)
		pt.set(metadataOf(t, "", key(2)), nil)
		other.must()
		pt.wantCalls(2)
		pt.set("", errAway)
		if d := pt.must(); !d.Has(samltest.NewKey(samltest.P256, 2).Certificate) {
			t.Error("the copy in memory hides the newer one that is kept")
		}
		pt.wantCalls(2)
		// Nothing of it is for other clusters.
		for k := range pt.mount.Snapshot() {
			if k.Class() == storage.Shared && strings.HasSuffix(string(k), "/provider") {
				t.Errorf("kept under %s", k)
			}
		}
	})
}

// describe returns what a descriptor says, for comparisons.
func describe(d *idp.Descriptor) []any {
	all := []any{d.EntityID, d.SSOURL, d.WantsSignedRequests, d.ValidUntil.UTC(), d.CacheDuration}
	for _, c := range d.Certificates {
		all = append(all, fingerprint(c))
	}
	return all
}

func TestAnotherURLMakesTheCopyUseless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		first := pt.must()
		pt.set("", errAway)
		pt.write(settings{"idp_metadata_url": "https://other.example.com/metadata"})
		pt.fails()
		pt.peer().fails()
		pt.set(metadataOf(t, "", key(1), samltest.WithEntityID("urn:other")), nil)
		time.Sleep(retryWaiting)
		if d := pt.must(); d.EntityID != "urn:other" || pt.urls[len(pt.urls)-1] != "https://other.example.com/metadata" {
			t.Errorf("provider = %+v, fetched %v", d, pt.urls)
		}
		if strings.Contains(pt.log.String(), "another entity id") {
			t.Error("a warning of another entity id, though the URL is another one")
		}
		p := samltest.New(t, key(2))
		pt.write(explicitFields(p))
		if d := pt.must(); d == first || !d.Has(p.Key.Certificate) {
			t.Error("the copy outlives the change to explicit fields")
		}
	})
}

// TestTheSameMetadataElsewhere: what is kept is of the URL, even if both say the same.
func TestTheSameMetadataElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		pt.must()
		pt.write(settings{"idp_metadata_url": "https://other.example.com/metadata"})
		pt.must()
		pt.set("", errAway)
		pt.peer().must()
	})
}

// TestAFetchThatIsOutOfDate: what arrives for a URL that is configured no more changes nothing.
func TestAFetchThatIsOutOfDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		release := pt.block()
		go pt.provider()
		synctest.Wait()
		old := pt.hold
		pt.mu.Lock()
		pt.hold, pt.document = nil, metadataOf(t, "", key(1), samltest.WithEntityID("urn:other"))
		pt.mu.Unlock()
		pt.write(settings{"idp_metadata_url": "https://other.example.com/metadata"})
		want := pt.must()
		pt.mu.Lock()
		pt.hold = old
		pt.mu.Unlock()
		release()
		synctest.Wait()
		if pt.must() != want {
			t.Error("the old URL's metadata took the place of the new one's")
		}
		pt.set("", errAway)
		if d := pt.peer().must(); d.EntityID != "urn:other" {
			t.Error("the old URL's metadata was kept")
		}
		pt.wantCalls(2)
	})
}

// TestACopyOfTheFuture: a clock that was wrong once does not stop refreshes for years.
func TestACopyOfTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		first := pt.must()
		future := newCopy(testSource, time.Now().AddDate(10, 0, 0), first)
		if err := pt.engine().store(t.Context(), pt.mount.Mount, future, nil); err != nil {
			t.Fatal(err)
		}
		pt.set(metadataOf(t, "", key(1)), nil)
		if pt.must().Has(first.Certificates[0]) {
			t.Error("not refreshed")
		}
	})
}

func TestAnotherEntityIDIsAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		pt.must()
		time.Sleep(2 * time.Hour)
		pt.set(metadataOf(t, "", key(0), samltest.WithEntityID("urn:other")), nil)
		pt.must()
		if d := pt.must(); d.EntityID != "urn:other" {
			t.Errorf("entity id %s, want the new one", d.EntityID)
		}
		if !strings.Contains(pt.log.String(), "another entity id") {
			t.Errorf("no warning: %s", pt.log)
		}
	})
}

func TestNewerProviderAfterARollOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		old := pt.must()
		if pt.newer(old) != nil {
			t.Error("something newer moments after the fetch")
		}
		pt.wantCalls(1)
		time.Sleep(newerEvery)
		if pt.newer(old) != nil {
			t.Error("the same certificates are newer")
		}
		pt.wantCalls(2)
		pt.set(metadataOf(t, "", key(0), samltest.WithNext(samltest.NewKey(samltest.P256, 1))), nil)
		for range 59 { // however often a client posts rubbish
			time.Sleep(time.Second)
			if pt.newer(old) != nil {
				t.Error("fetched again within a minute")
			}
		}
		pt.wantCalls(2)
		time.Sleep(time.Second)
		d := pt.newer(old)
		if d == nil || !d.Has(samltest.NewKey(samltest.P256, 1).Certificate) {
			t.Fatalf("newerProvider = %v, want the new certificates", d)
		}
		pt.wantCalls(3)
		// Those who hold the old one get the new one without a fetch, on other nodes too.
		if pt.newer(old) != d || pt.must() != d {
			t.Error("the new one is not kept")
		}
		if pt.peer().newer(old) == nil {
			t.Error("another node does not know the new one")
		}
		pt.wantCalls(3)
		if pt.newer(d) != nil {
			t.Error("something newer than the newest")
		}
	})
}

func TestNewerProviderWhileTheProviderIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		old := pt.must()
		pt.set("", errAway)
		time.Sleep(newerEvery)
		if pt.newer(old) != nil {
			t.Error("something newer out of nothing")
		}
		if pt.newer(old) != nil {
			t.Error("something newer out of nothing")
		}
		pt.wantCalls(2)
		if pt.must() != old {
			t.Error("the good copy is gone")
		}
		time.Sleep(newerEvery)
		release := pt.block()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := pt.engine().Newer(ctx, pt.mount.Mount, pt.conf, old); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that has ended: %v", err)
		}
		release()
		synctest.Wait()
	})
}

// cannotWrite is a store that lost its cluster.
type cannotWrite struct{ storage.Store }

func (cannotWrite) Commit(context.Context, storage.Batch) (storage.Index, error) {
	return 0, storage.ErrUnavailable
}

// TestACopyThatCannotBeStoredIsNotUsed: the cluster would go by another one.
func TestACopyThatCannotBeStoredIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		pt.mount.Mount.ClusterStorage = cannotWrite{pt.mount.Mount.ClusterStorage}
		if err := pt.fails(); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("the cause is lost: %v", err)
		}
	})
}

func TestAKeptCopyThatCannotBeReadIsFetchedAgain(t *testing.T) {
	for _, text := range []string{"{", `{"format":2}`, `{"format":1,"url":"` + testSource + `","certificates":["AAAA"]}`} {
		synctest.Test(t, func(t *testing.T) {
			pt := newProviderTest(t, samltest.New(t, key(0)))
			_, err := storage.Update(t.Context(), pt.mount.Mount.ClusterStorage, func(txn *storage.Txn) error {
				txn.Put(providerKey, []byte(text))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			pt.must()
			pt.wantCalls(1)
			if !strings.Contains(pt.log.String(), "kept copy") {
				t.Errorf("%s: no warning: %s", text, pt.log)
			}
			pt.set("", errAway)
			pt.peer().must() // it was replaced
		})
	}
}

func TestVerifyConfigMetadata(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := samltest.New(t, samltest.WithKey(certified(t, -time.Hour, 29*24*time.Hour)), samltest.WithSSOURL("http://idp.example.com/sso"))
		p.WantsSignedRequests = true
		pt := newProviderTest(t, p)
		pt.write(settings{"entity_id": p.EntityID, "acs_urls": []string{testACS, "https://b.example.com/v1/ns/auth/saml/callback", "https://b.example.com/callback"}, "default_role": "ops"})
		resp := pt.mount.Must(engines.Update, "config/verify", nil)
		c := p.Key.Certificate
		wantFields(t, pt.mount.Data(resp), fmt.Sprintf(`{"entity_id":%q,"sso_url":%q,"wants_signed_requests":true,"fetched_at":"2000-01-01T00:00:00Z",`+
			`"certificates":[{"not_after":%q,"not_before":%q,"sha256_fingerprint":%q,"subject":"CN=idp.example.com"}]}`,
			p.EntityID, p.SSOURL, c.NotAfter.UTC().Format(time.RFC3339), c.NotBefore.UTC().Format(time.RFC3339), fingerprint(c)))
		wantWarnings(t, resp, `no role "ops"`, "expires soon, at 2000-01-30T00:00:00Z", "turn on sign_authn_requests", "entity_id is the entity id of the identity provider",
			"http://idp.example.com/sso is a URL without TLS", "acs_urls: https://b.example.com/callback does not end in /auth/saml/callback")

		// It always fetches, and what it fetched counts.
		pt.set(metadataOf(t, "", key(1)), nil)
		pt.mount.Must(engines.Update, "config/verify", nil)
		pt.wantCalls(2)
		if d := pt.must(); !d.Has(samltest.NewKey(samltest.P256, 1).Certificate) {
			t.Error("what config/verify fetched is not used")
		}
		pt.wantCalls(2)
	})
}

func TestVerifyConfigSaysWhyMetadataCannotBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pt := newProviderTest(t, samltest.New(t, key(0)))
		good := pt.document
		pt.set("", errAway)
		for _, want := range []string{"the metadata at " + testSource + " cannot be had: " + errAway.Error(), "cannot be had"} {
			if text := pt.mount.Fails(engines.KindUpstream, engines.Update, "config/verify", nil); !strings.Contains(text, want) || strings.Contains(text, "logins go on") {
				t.Errorf("%q, want %q", text, want)
			}
		}
		pt.wantCalls(2)
		pt.set(good, nil)
		pt.mount.Must(engines.Update, "config/verify", nil)
		pt.set("<html/>", nil)
		if text := pt.mount.Fails(engines.KindUpstream, engines.Update, "config/verify", nil); !strings.Contains(text, "HTML page") || !strings.Contains(text, "logins go on with the copy of 2000-01-01T00:00:00Z") {
			t.Errorf("%q", text)
		}
	})
}

func TestVerifyConfigExplicit(t *testing.T) {
	m := configMount(t)
	p := samltest.New(t, key(0), samltest.WithNext(certified(t, -48*time.Hour, -time.Hour)))
	m.Must(engines.Update, "config", explicitFields(p))
	resp := m.Must(engines.Update, "config/verify", nil)
	data := m.Data(resp)
	wantFields(t, data, fmt.Sprintf(`{"entity_id":%q,"sso_url":%q,"wants_signed_requests":false,"fetched_at":null}`, p.EntityID, p.SSOURL))
	if n := len(data["certificates"].([]any)); n != 2 {
		t.Errorf("%d certificates, want 2", n)
	}
	wantWarnings(t, resp, "expired at")
}

// TestMetadataOverHTTP is the whole way with nothing replaced.
func TestMetadataOverHTTP(t *testing.T) {
	p := samltest.New(t, key(0))
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	m := configMount(t)
	m.Must(engines.Update, "config", byMetadata.with(settings{"idp_metadata_url": server.URL + "/metadata"}))
	wantFields(t, m.Data(m.Must(engines.Update, "config/verify", nil)), fmt.Sprintf(`{"entity_id":%q}`, p.EntityID))
	server.Close()
	if text := m.Fails(engines.KindUpstream, engines.Update, "config/verify", nil); !strings.Contains(text, "connect") {
		t.Errorf("%q does not say what happened", text)
	}
	c, err := GetConfig(t.Context(), m.Mount.Storage)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Peer().Engine.(only).Descriptor(t.Context(), m.Mount, c); err != nil {
		t.Errorf("the kept copy: %v", err)
	}
}
