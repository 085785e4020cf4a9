package admission_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/coffer-project/coffer/server/admission"
)

func TestForwarded(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	strict := admission.Forwarded{Authorized: proxies, RejectNotPresent: true, RejectNotAuthorized: true}
	for name, test := range map[string]struct {
		f       admission.Forwarded
		peer    string
		headers []string
		want    string // "": rejected
	}{
		"not configured":            {admission.Forwarded{RejectNotPresent: true}, "10.0.0.1:5", []string{"1.2.3.4"}, "10.0.0.1:5"},
		"a proxy":                   {strict, "10.0.0.1:5", []string{"1.2.3.4"}, "1.2.3.4:5"},
		"a mapped proxy":            {strict, "[::ffff:10.0.0.1]:5", []string{"1.2.3.4"}, "1.2.3.4:5"},
		"an IPv6 client":            {strict, "[fd00::1]:5", []string{"2001:db8::7"}, "[2001:db8::7]:5"},
		"the last one":              {strict, "10.0.0.1:5", []string{"9.9.9.9, 1.2.3.4"}, "1.2.3.4:5"},
		"the last header":           {strict, "10.0.0.1:5", []string{"9.9.9.9", "1.2.3.4"}, "1.2.3.4:5"},
		"missing":                   {strict, "10.0.0.1:5", nil, ""},
		"empty":                     {strict, "10.0.0.1:5", []string{""}, ""},
		"a name":                    {strict, "10.0.0.1:5", []string{"localhost"}, ""},
		"no proxy":                  {strict, "11.0.0.1:5", []string{"1.2.3.4"}, ""},
		"no proxy, ignored":         {admission.Forwarded{Authorized: proxies}, "11.0.0.1:5", []string{"1.2.3.4"}, "11.0.0.1:5"},
		"missing, accepted":         {admission.Forwarded{Authorized: proxies}, "10.0.0.1:5", nil, "10.0.0.1:5"},
		"one hop":                   {admission.Forwarded{Authorized: proxies, HopSkips: 1}, "10.0.0.1:5", []string{"1.2.3.4, 10.0.0.2"}, "1.2.3.4:5"},
		"more hops than addresses":  {admission.Forwarded{Authorized: proxies, HopSkips: 2}, "10.0.0.1:5", []string{"1.2.3.4, 10.0.0.2"}, ""},
		"a peer without an address": {strict, "@", []string{"1.2.3.4"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &http.Request{RemoteAddr: test.peer, Header: http.Header{}}
			if test.headers != nil {
				r.Header["X-Forwarded-For"] = test.headers
			}
			got, err := test.f.Client(r)
			if got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("Client = %q, %v; want %q", got, err, test.want)
			}
		})
	}
}
