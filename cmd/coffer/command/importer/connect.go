package importer

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/importer/source"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/openbao/openbao/api/v2"
)

// openSource makes the client of the server to import from.
func openSource(c *command.Call) (*source.Client, error) {
	address := c.String("source-address")
	if address == "" {
		address = local.Env("SOURCE_ADDR")
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, command.Usagef("name the server to import from: -source-address=https://vault.example.com:8200")
	}
	token, err := sourceToken(c)
	if err != nil {
		return nil, err
	}
	client, err := sourceHTTP(c)
	if err != nil {
		return nil, err
	}
	namespace := command.CleanPath(c.String("source-namespace"))
	if c.API != nil && strings.TrimRight(c.API.Address(), "/") == strings.TrimRight(address, "/") && strings.Trim(c.API.Namespace(), "/") == namespace {
		return nil, command.Usagef("source and destination are the same server and namespace")
	}
	return source.New(source.Options{Address: address, Namespace: namespace, Token: token, HTTP: client, Rate: c.Float("rate")}), nil
}

func sourceToken(c *command.Call) (string, error) {
	var raw []byte
	var err error
	switch file := c.String("source-token-file"); file {
	case "":
		raw = []byte(local.Env("SOURCE_TOKEN"))
	case "-":
		raw, err = io.ReadAll(io.LimitReader(c.In, 64<<10))
	default:
		raw, err = os.ReadFile(file)
	}
	if err != nil {
		return "", command.Usagef("reading the token of the source: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", command.Usagef("give the token of the source with -source-token-file, or in COFFER_SOURCE_TOKEN")
	}
	return token, nil
}

// sourceHTTP makes the connections to the source, with TLS as the flags say.
func sourceHTTP(c *command.Call) (*http.Client, error) {
	config := api.NewConfig()
	if config.Error != nil {
		return nil, config.Error
	}
	err := config.ConfigureTLS(&api.TLSConfig{
		CACert: c.String("source-ca-cert"), ClientCert: c.String("source-client-cert"), ClientKey: c.String("source-client-key"),
		TLSServerName: c.String("source-tls-server-name"), Insecure: c.Bool("source-tls-skip-verify"),
	})
	if err != nil {
		return nil, command.Usagef("TLS settings of the source: %v", err)
	}
	client := config.HttpClient
	client.Timeout = config.Timeout
	if transport, ok := client.Transport.(*http.Transport); ok {
		transport.MaxIdleConnsPerHost = c.Int("concurrency")
	}
	// A standby may lead to the active node. The token goes with the request, so never to an unencrypted address.
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if len(via) > 2 || via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return errors.New("the source redirects to another address: name that one")
		}
		return nil
	}
	return client, nil
}
