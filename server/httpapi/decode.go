package httpapi

import (
	"cmp"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/pipeline"
)

// decode fills the request from everything but the body.
func (x *exchange) decode(prefix string) error {
	r := x.r
	x.req.Header = r.Header
	if err := checkOnce(r.Header); err != nil {
		return err
	}
	token, err := tokenOf(r.Header)
	if err != nil {
		return err
	}
	x.req.Token = engines.Sensitive(token)
	x.req.Namespace = strings.Trim(r.Header.Get("X-Vault-Namespace"), "/")
	x.req.Remote, _ = netip.ParseAddrPort(r.RemoteAddr)
	if r.TLS != nil {
		x.req.Certificates = r.TLS.PeerCertificates
	}
	if x.req.Op, err = operation(r.Method); err != nil {
		return err
	}
	if r.URL.RawQuery != "" {
		if err := x.query(); err != nil {
			return err
		}
	}
	x.req.Path = strings.TrimPrefix(r.URL.Path, prefix)
	if err := pipeline.CheckPath(x.req.Path); err != nil {
		return err
	}
	return x.lastSlash()
}

// query takes the query string, and what it says of the operation.
func (x *exchange) query() error {
	q, err := url.ParseQuery(x.r.URL.RawQuery)
	if err != nil {
		return engines.Invalid("the query string is malformed")
	}
	x.req.Query = q
	if x.req.Help, err = boolQuery(q, "help"); err != nil || x.req.Op != engines.Read {
		return err
	}
	list, err := boolQuery(q, "list")
	if err != nil {
		return err
	}
	scan, err := boolQuery(q, "scan")
	switch {
	case scan:
		x.req.Op = engines.Scan
	case list:
		x.req.Op = engines.List
	}
	return err
}

// lastSlash makes the end of the path the same for everybody behind: only LIST paths end in a slash. Engines
// that do not mind one would else see the same object behind two paths, of which a policy names one.
func (x *exchange) lastSlash() error {
	slash := strings.HasSuffix(x.req.Path, "/")
	switch x.req.Op {
	case engines.List, engines.Scan:
		if !slash {
			x.req.Path += "/"
		}
	case engines.Update, engines.Patch:
		if slash {
			return engines.Invalid("cannot write to a path ending in '/'")
		}
	default:
		x.req.Path = strings.TrimSuffix(x.req.Path, "/")
	}
	return nil
}

// once are the headers that say who asks, and where. A proxy may add one of its own or look at another of several
// than this server does, so that there must not be two that differ.
var once = [...]string{"X-Vault-Token", "X-Vault-Namespace", "Authorization", "X-Vault-Wrap-Ttl"}

func checkOnce(h http.Header) error {
	for _, name := range once {
		values := h[name]
		for _, v := range values {
			if v != values[0] {
				return engines.Invalid("the header %s is there more than once, with different values", name)
			}
		}
	}
	return nil
}

// tokenOf returns the request's token, "" if there is none. It may be in two headers, but it must be one token.
func tokenOf(h http.Header) (string, error) {
	token, authorization := h.Get("X-Vault-Token"), h.Get("Authorization")
	if authorization == "" {
		return token, nil
	}
	scheme, bearer, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return token, nil
	}
	bearer = strings.TrimSpace(bearer)
	if token != "" && bearer != "" && token != bearer {
		return "", engines.Invalid("the headers X-Vault-Token and Authorization hold different tokens")
	}
	return cmp.Or(token, bearer), nil
}

func boolQuery(q url.Values, name string) (bool, error) {
	v := q.Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, engines.Invalid("query parameter %q must be true or false", name)
	}
	return b, nil
}

func operation(method string) (engines.Operation, error) {
	switch method {
	case http.MethodGet, http.MethodHead:
		return engines.Read, nil
	case http.MethodPost, http.MethodPut:
		return engines.Update, nil
	case http.MethodDelete:
		return engines.Delete, nil
	case http.MethodPatch:
		return engines.Patch, nil
	case "LIST":
		return engines.List, nil
	case "SCAN":
		return engines.Scan, nil
	}
	return "", &engines.Error{Kind: engines.KindUnsupported, Detail: "unsupported method: use GET, POST, PUT, PATCH, DELETE, LIST or SCAN"}
}

// takeTime lifts the server's limit on how long an answer may take.
func (x *exchange) takeTime() { http.NewResponseController(x.w).SetWriteDeadline(time.Time{}) }
