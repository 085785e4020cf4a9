package security_test

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines/saml/samltest"
	"github.com/coffer-project/coffer/test/harness"
)

func rss(n *harness.Node) string {
	for _, p := range []string{fmt.Sprintf("/proc/%d/status", n.PID())} {
		b, _ := os.ReadFile(p)
		for _, l := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(l, "VmRSS") || strings.HasPrefix(l, "VmHWM") {
				fmt.Println(l)
			}
		}
	}
	return ""
}

func TestZZLoad(t *testing.T) {
	_, root := single(t, harness.Options{})
	m := root.saml("sso", samltest.New(t), fields{"allow_idp_initiated": true})
	l := m.start(nil)
	xml := m.idp.XML(samltest.Response{User: alice, RequestID: "_x", ACSURL: m.acs, Audience: entityID})
	bodies := map[string]string{}
	bodies["rubbish"] = strings.Repeat("<a>", 300_000)
	// many attribute values, below element limits
	bodies["values"] = strings.Replace(xml, "<saml:AttributeValue>staff</saml:AttributeValue>", strings.Repeat("<saml:AttributeValue>"+strings.Repeat("x", 100)+"</saml:AttributeValue>", 6000), 1)
	bodies["text"] = strings.Replace(xml, "staff", strings.Repeat("y", 950_000), 1)
	for name, body := range bodies {
		form := []byte(url.Values{"RelayState": {l.relay}, "SAMLResponse": {base64.StdEncoding.EncodeToString([]byte(body))}}.Encode())
		var stop atomic.Bool
		var n atomic.Int64
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				for !stop.Load() {
					m.nobody().do("POST", m.path("callback"), form, "Content-Type", "application/x-www-form-urlencoded")
					n.Add(1)
				}
			})
		}
		var took []time.Duration
		end := time.Now().Add(8 * time.Second)
		for time.Now().Before(end) {
			at := time.Now()
			root.do("GET", "auth/token/lookup-self", nil)
			took = append(took, time.Since(at))
			time.Sleep(20 * time.Millisecond)
		}
		stop.Store(true)
		wg.Wait()
		sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
		fmt.Println(name, len(body), "posts", n.Load(), "lookup median", took[len(took)/2], "p99", took[len(took)*99/100])
		rss(root.n)
	}
}
