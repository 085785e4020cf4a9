package config

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/token"
)

// Socket is what a unix socket belongs to, and who may connect.
type Socket struct {
	Mode        fs.FileMode // 0: only its user
	User, Group string      // names or numbers; "": the server's
}

// Registration is the pod whose labels have the state of the node.
type Registration struct{ Namespace, Pod string }

// LogRotation says when the log file is moved away and a new one begun.
type LogRotation struct {
	Bytes int64         // size of a file; 0: any
	Every time.Duration // at multiples of it; 0: never
	Keep  int64         // older files that are kept; 0: all, -1: none
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Rotate takes texts for keys of the rotation, which win over the files. "" changes nothing.
func (c *Config) Rotate(texts map[string]string) error {
	d := &decoder{name: "flags"}
	for key, f := range c.LogRotation.fields() {
		if text := texts[key]; text != "" {
			value := token.Token{Type: token.STRING, Text: strconv.Quote(text)}
			f(d, &ast.ObjectItem{Keys: []*ast.ObjectKey{{Token: token.Token{Type: token.IDENT, Text: key}}}, Val: &ast.LiteralType{Token: value}})
		}
	}
	return errors.Join(d.problems...)
}

func (r *LogRotation) fields() map[string]field {
	return map[string]field{"log_rotate_bytes": sizeOr0(&r.Bytes), "log_rotate_duration": duration(&r.Every), "log_rotate_max_files": keep(&r.Keep)}
}

// keep takes a number of older log files.
func keep(into *int64) field {
	return func(d *decoder, item *ast.ObjectItem) {
		if v, _, ok := d.literal(item); ok && v == "-1" {
			*into = -1
			return
		}
		number(into)(d, item)
	}
}

func logLevel(into *string) field {
	return func(d *decoder, item *ast.ObjectItem) {
		choice(into, "trace", "debug", "info", "warn", "error", "notice", "err", "warning")(d, item)
		*into = LogLevel(*into)
	}
}

// LogLevel returns our word for a level: others are Vault's.
func LogLevel(level string) string {
	switch strings.ToLower(level) {
	case "notice":
		return "info"
	case "warning":
		return "warn"
	case "err":
		return "error"
	}
	return level
}

func logFormat(into *string) field {
	return func(d *decoder, item *ast.ObjectItem) {
		choice(into, "text", "json", "standard", "")(d, item)
		if format, ok := LogFormat(*into); ok {
			*into = format
		}
	}
}

// LogFormat returns our word for a format of the log, "text" or "json", and whether it is one: others are Vault's.
func LogFormat(format string) (ours string, ok bool) {
	if format == "standard" {
		format = "text"
	}
	return format, format == "text" || format == "json"
}

// cipherSuites takes names with commas.
func cipherSuites(into *[]uint16) field {
	return func(d *decoder, item *ast.ObjectItem) {
		var text string
		text1(&text)(d, item)
		for name := range strings.SplitSeq(text, ",") {
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			i := slices.IndexFunc(tls.CipherSuites(), func(s *tls.CipherSuite) bool { return s.Name == name })
			if i < 0 {
				d.problem(item.Pos(), "%q: %q is no cipher suite, or not a safe one", keyOf(item), name)
				continue
			}
			*into = append(*into, tls.CipherSuites()[i].ID)
		}
	}
}

// socketMode takes the octal digits of a mode.
func (d *decoder) socketMode(into *fs.FileMode) field {
	return func(d *decoder, item *ast.ObjectItem) {
		v, _, ok := d.literal(item)
		if !ok {
			return
		}
		if lit, isLiteral := item.Val.(*ast.LiteralType); isLiteral && lit.Token.Type == token.NUMBER {
			v = lit.Token.Text // as it is written: 0660 is octal
		}
		n, err := strconv.ParseUint(v, 8, 32)
		if err != nil || n == 0 || n > 0o777 {
			d.problem(item.Pos(), "%q must be a mode such as \"0660\"", keyOf(item))
			return
		}
		*into = fs.FileMode(n)
	}
}

// headerStatus is what headers of responses are for.
var headerStatus = regexp.MustCompile(`^(default|[1-5]xx|[1-5][0-9][0-9])$`)

// headerName is what may be in the name of a header.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

// headers takes stanzas of headers by status.
func (d *decoder) headers(into *map[string]map[string][]string) field {
	return func(d *decoder, item *ast.ObjectItem) {
		_, list := d.block(item)
		if *into == nil {
			*into = map[string]map[string][]string{}
		}
		for _, status := range list.Items {
			name := keyOf(status)
			if !headerStatus.MatchString(name) {
				d.problem(status.Pos(), "custom_response_headers: %q must be \"default\", a class such as \"2xx\" or a status such as \"404\"", name)
				continue
			}
			_, headers := d.block(status)
			values := map[string][]string{}
			for _, h := range headers.Items {
				key := http.CanonicalHeaderKey(keyOf(h))
				if !headerName.MatchString(key) || strings.HasPrefix(key, "X-Vault-") || strings.HasPrefix(key, "X-Coffer-") ||
					slices.Contains([]string{"Content-Length", "Content-Type", "Transfer-Encoding", "Connection"}, key) {
					d.problem(h.Pos(), "custom_response_headers: the header %q is the server's own, or none", keyOf(h))
					continue
				}
				all := []string{}
				if _, isList := h.Val.(*ast.ListType); isList {
					texts(&all)(d, h)
				} else {
					all = append(all, "")
					text1(&all[0])(d, h)
				}
				for _, v := range all {
					if strings.ContainsAny(v, "\r\n\x00") {
						d.problem(h.Pos(), "custom_response_headers: values must be one line")
					}
				}
				values[key] = all
			}
			(*into)[name] = values
		}
	}
}

func (d *decoder) registration(c *Config) field {
	return func(d *decoder, item *ast.ObjectItem) {
		label, list := d.block(item)
		if label != "kubernetes" {
			d.problem(item.Pos(), "service_registration %q: the only type is \"kubernetes\"", label)
			return
		}
		if c.Registration != nil {
			d.problem(item.Pos(), "there are two service_registration stanzas")
		}
		c.Registration = &Registration{}
		d.object("service_registration", list, map[string]field{"namespace": text1(&c.Registration.Namespace), "pod_name": text1(&c.Registration.Pod)})
	}
}

// protection reports settings that contradict each other.
func (l *Listener) protection(add func(string, ...any)) {
	if l.TLSDisableClientCerts && (l.TLSRequireClient || l.TLSClientCAFile != "") {
		add("listener %s: tls_disable_client_certs contradicts tls_client_ca_file and tls_require_and_verify_client_cert", l.Address)
	}
	if l.TLSMinVersion == "tls13" && l.TLSMaxVersion == "tls12" {
		add("listener %s: tls_max_version is below tls_min_version", l.Address)
	}
	if l.NoMetrics && l.MetricsOnly {
		add("listener %s: telemetry: disallow_metrics contradicts metrics_only", l.Address)
	}
	if l.Socket != (Socket{}) && !l.Unix {
		add("listener %s: socket_mode, socket_user and socket_group are for listener \"unix\"", l.Address)
	}
}

// socket completes a listener at a unix socket.
func (l *Listener) socket(add func(string, ...any)) {
	if !filepath.IsAbs(l.Address) {
		add("listener \"unix\": address %q must be an absolute path", l.Address)
	} else if info, err := os.Stat(filepath.Dir(l.Address)); err == nil && !info.IsDir() {
		add("listener \"unix\": %s is no directory", filepath.Dir(l.Address))
	}
	if l.Proxy.Behavior != "" {
		add("listener %s: proxy_protocol_behavior is for listener \"tcp\"", l.Address)
	}
	if l.ClusterAddress != "" {
		add("listener %s: cluster_address is for listener \"tcp\"", l.Address)
	}
	if l.TLSCertFile == "" && l.TLSKeyFile == "" {
		l.TLSDisable = true // nothing passes a network
	} else if !l.TLSDisable && (l.TLSCertFile == "" || l.TLSKeyFile == "") {
		add("listener %s: tls_cert_file and tls_key_file belong together", l.Address)
	}
	if l.TLSRequireClient && (l.TLSDisable || l.TLSClientCAFile == "") {
		add("listener %s: tls_require_and_verify_client_cert needs TLS and tls_client_ca_file, or anybody's certificate would do", l.Address)
	}
	l.proxies(add)
}
