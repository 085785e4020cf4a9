package config

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/hcl/ast"
)

// DefaultRequestBytes is how long a request's body may be unless the configuration says otherwise.
const DefaultRequestBytes = 32 << 20

// ForwardedFor is what a listener makes of the header X-Forwarded-For.
type ForwardedFor struct {
	Authorized          []netip.Prefix // peers whose header counts; empty: no header counts
	HopSkips            int64
	RejectNotPresent    bool
	RejectNotAuthorized bool
	CertHeader          string   // with the client's certificate
	CertDecoders        []string // of CertHeader
	Given               bool     // one of the settings that mean nothing without Authorized
}

// ProxyProtocol is what a listener makes of PROXY headers.
type ProxyProtocol struct {
	Behavior   string // "": they are not understood
	Authorized []netip.Prefix
}

// proxies reports settings that mean nothing together.
func (l *Listener) proxies(add func(string, ...any)) {
	if l.Forwarded.Given && len(l.Forwarded.Authorized) == 0 {
		add("listener %s: x_forwarded_for_* means nothing without x_forwarded_for_authorized_addrs", l.Address)
	}
	if h := http.CanonicalHeaderKey(l.Forwarded.CertHeader); h != "" && (!headerName.MatchString(h) || strings.HasPrefix(h, "X-Vault-") || strings.HasPrefix(h, "Coffer-") ||
		slices.Contains([]string{"X-Forwarded-For", "Authorization", "Content-Length", "Content-Type", "Connection", "Host"}, h)) {
		add("listener %s: x_forwarded_for_client_cert_header %q cannot be the header of a certificate", l.Address, l.Forwarded.CertHeader)
	}
	if len(l.Forwarded.CertDecoders) > 0 && l.Forwarded.CertHeader == "" {
		add("listener %s: x_forwarded_for_client_cert_header_decoders means nothing without x_forwarded_for_client_cert_header", l.Address)
	}
	for _, decoder := range l.Forwarded.CertDecoders {
		if !slices.Contains([]string{"URL", "BASE64", "DER"}, decoder) {
			add("listener %s: x_forwarded_for_client_cert_header_decoders: %q is none of URL, BASE64, DER", l.Address, decoder)
		}
	}
	switch p := l.Proxy; {
	case p.Behavior == "" && len(p.Authorized) > 0:
		add("listener %s: proxy_protocol_authorized_addrs means nothing without proxy_protocol_behavior", l.Address)
	case p.Behavior == "use_always" && len(p.Authorized) > 0:
		add("listener %s: proxy_protocol_behavior \"use_always\" accepts every address: leave proxy_protocol_authorized_addrs out, or use \"deny_unauthorized\"", l.Address)
	case p.Behavior != "" && p.Behavior != "use_always" && len(p.Authorized) == 0:
		add("listener %s: proxy_protocol_behavior %q needs proxy_protocol_authorized_addrs", l.Address, p.Behavior)
	}
}

// given notes that a field is there.
func given(into *bool, f field) field {
	return func(d *decoder, item *ast.ObjectItem) {
		*into = true
		f(d, item)
	}
}

// decoders takes the names of decoders in their order: a list of texts, or one text with commas.
func decoders(into *[]string) field {
	return func(d *decoder, item *ast.ObjectItem) {
		if _, ok := item.Val.(*ast.ListType); ok {
			texts(into)(d, item)
		} else {
			var text string
			text1(&text)(d, item)
			*into = strings.Split(text, ",")
		}
		for i, name := range *into {
			(*into)[i] = strings.ToUpper(strings.TrimSpace(name))
		}
	}
}

// networks takes addresses and networks: a list of texts, or one text with commas.
func networks(into *[]netip.Prefix) field {
	return func(d *decoder, item *ast.ObjectItem) {
		var texts []string
		if list, ok := item.Val.(*ast.ListType); ok {
			for _, v := range list.List {
				lit, ok := v.(*ast.LiteralType)
				text, isText := "", false
				if ok {
					text, isText = lit.Token.Value().(string)
				}
				if !isText {
					d.problem(item.Pos(), "%q must be a list of texts", keyOf(item))
					return
				}
				texts = append(texts, text)
			}
		} else {
			var text string
			text1(&text)(d, item)
			texts = strings.Split(text, ",")
		}
		for _, text := range texts {
			n, err := network(strings.TrimSpace(text))
			if err != nil {
				d.problem(item.Pos(), "%q: %q is no IP address or network such as 10.0.0.0/8", keyOf(item), text)
				return
			}
			*into = append(*into, n)
		}
	}
}

func network(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, err
		}
		ip = ip.Unmap()
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	n, err := netip.ParsePrefix(text)
	return n.Masked(), err
}
