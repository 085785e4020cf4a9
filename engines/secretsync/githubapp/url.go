package githubapp

import (
	"net/url"
	"regexp"
	"strings"
)

const (
	maxURL       = 255
	residencyURL = ".ghe.com" // GitHub Enterprise Cloud with data residency: SUBDOMAIN.ghe.com
)

var (
	legalHost      = regexp.MustCompile(`^([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?$`)
	legalSubdomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
)

// NormalizeURL returns the address of a GitHub installation in its usual form, "https://HOST" or "https://HOST:PORT", and "" for github.com
// itself. problem says what is wrong with the text, "" if nothing is.
func NormalizeURL(text string) (normal, problem string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return "", ""
	}
	u, err := url.Parse(text)
	const want = "must be https://HOST of a GitHub Enterprise Server, or https://SUBDOMAIN.ghe.com"
	switch {
	case err != nil || len(text) > maxURL || u.Scheme != "https" || u.Opaque != "":
		return "", want
	case u.User != nil:
		return "", want + ", without a user or password"
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#"):
		return "", want + ", without a query or fragment"
	}
	host := strings.TrimSuffix(strings.ToLower(u.Host), ":443")
	switch path := strings.TrimSuffix(u.Path, "/"); {
	case !legalHost.MatchString(host):
		return "", want
	case host == "github.com", host == "www.github.com", host == "api.github.com":
		host = ""
	case path != "" && path != "/api/v3":
		return "", want + ", without a path"
	case strings.HasSuffix(host, residencyURL):
		host = strings.TrimPrefix(host, "api.")
		if !legalSubdomain.MatchString(strings.TrimSuffix(host, residencyURL)) {
			return "", want
		}
	}
	if host == "" {
		return "", ""
	}
	return "https://" + host, ""
}

// APIURL returns the address of the API of an installation, with a slash at the end; "" for github.com. url is as NormalizeURL returns it.
func APIURL(url string) string {
	host := strings.TrimPrefix(url, "https://")
	switch {
	case url == "":
		return ""
	case strings.HasSuffix(host, residencyURL):
		return "https://api." + host + "/"
	}
	return url + "/api/v3/"
}
