package httpapi

import (
	"mime"
	"net/http"

	"github.com/coffer-project/coffer/engines"
)

// sameOrigin tells the requests of other sites' pages by Sec-Fetch-Site and, from browsers without it, by Origin and Host.
// Clients that are no browsers send neither header and pass.
var sameOrigin http.CrossOriginProtection

// checkSite rejects what a page of another site has a browser send without a token: such a page could otherwise start
// logins, submit unseal shares or use up limits from the addresses of its visitors. It need not ask first (there is no
// preflight) as long as the request looks like one of a form or an image. A token travels in a header, for which the
// browser asks. Accepted are origins that CORS allows (CORS.Apply has said so in the response's header), links, and forms
// for routes that take them from other sites.
func (x *exchange) checkSite() error {
	h := x.r.Header
	if x.req.Token != "" || x.w.Header().Get("Access-Control-Allow-Origin") != "" || x.ownSite() {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	if x.r.Method == http.MethodPost && kind == "application/x-www-form-urlencoded" && x.api.opts.Requests.WantsForeignForm(x.r.Context(), &x.req) {
		return nil
	}
	return &engines.Error{Kind: engines.KindDenied, Detail: "the request comes from a page of another site: add its origin to sys/config/cors if it may use the API"}
}

// ownSite reports whether no page of another site sent the request, or only a link of one.
func (x *exchange) ownSite() bool {
	switch x.r.Method {
	case http.MethodGet, http.MethodHead: // sameOrigin accepts all of them
		h := x.r.Header
		return h.Get("Sec-Fetch-Site") != "cross-site" || h.Get("Sec-Fetch-Mode") == "navigate"
	}
	return sameOrigin.Check(x.r) == nil
}
