package login

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/browser"
)

// What an OIDC login goes by where nothing else is said: the address that providers know as that of command lines.
const (
	oidcHost      = "localhost"
	oidcPort      = "8250"
	oidcPath      = "/oidc/callback"
	oidcLoginTime = 5 * time.Minute
)

// loginOIDC signs a user in with a browser: the provider sends the browser back to a port of this machine, and what it brings is
// exchanged for a token by the server.
func loginOIDC(ctx context.Context, c *command.Call) (*command.Response, error) {
	args, err := c.ParseData(ctx, c.Args().Slice())
	if err != nil {
		return nil, err
	}
	text := map[string]string{}
	for name, value := range args {
		s, ok := value.(string)
		switch name {
		case "role", "port", "listenaddress", "callbackhost", "skip_browser":
		default:
			ok = false
		}
		if !ok {
			return nil, command.Usagef("an OIDC login takes role=NAME, port=N, listenaddress=IP, callbackhost=NAME and skip_browser=true, not %q", name)
		}
		text[name] = s
	}
	mount := cmp.Or(strings.TrimPrefix(command.CleanPath(c.String("path")), "auth/"), "oidc")
	codes, err := factorCodes(ctx, c)
	if err != nil {
		return nil, err
	}
	client, err := c.Connect()
	if err != nil {
		return nil, err
	}
	client.ClearToken()
	client.SetMFACreds(codes)

	listener, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(text["listenaddress"], oidcHost), cmp.Or(text["port"], oidcPort)))
	if err != nil {
		return nil, command.Usagef("the provider could not send your browser back: %v; port=N takes another port, which the role must allow", err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return nil, err
	}
	redirect := "http://" + net.JoinHostPort(cmp.Or(text["callbackhost"], oidcHost), port) + oidcPath
	nonce := rand.Text()
	started, err := c.Put(ctx, command.AuthPrefix+mount+"/oidc/auth_url", map[string]any{
		"role": text["role"], "redirect_uri": redirect, "client_nonce": nonce,
	})
	if err != nil {
		return nil, loginRefused(err, mount, nil)
	}
	page, _ := started.Data()["auth_url"].(string)
	if page == "" {
		return nil, command.ServerErrorf("the server starts no login: the role must allow the redirect %s in allowed_redirect_uris", redirect)
	}
	if !browser.IsWebURL(page) {
		return nil, command.ServerErrorf("the server sent something else than the URL of a web page to sign in at")
	}
	c.Warnf("Sign in with a browser at\n\n%s\n", page)
	if why := browser.Unusable(); why == "" && text["skip_browser"] != "true" {
		browser.Open(page)
	}
	query, posted, err := awaitCallback(ctx, listener)
	if err != nil {
		return nil, err
	}
	path := command.AuthPrefix + mount + "/oidc/callback"
	if posted != nil { // oidc_response_mode=form_post: the server gets the form first
		_, err := c.Send(ctx, command.Request{Method: http.MethodPost, Path: path, Body: posted, Raw: true})
		if err != nil && command.StatusOf(err) != http.StatusBadRequest { // which the method also says of a form that it has taken
			return nil, loginRefused(err, mount, nil)
		}
	}
	query.Set("client_nonce", nonce)
	a, err := c.Send(ctx, command.Request{Method: http.MethodGet, Path: path, Query: query})
	if err != nil {
		return nil, loginRefused(err, mount, nil)
	}
	return a, nil
}

// maxCallback limits a form that the provider has a browser post.
const maxCallback = 1 << 20

// awaitCallback waits for the browser, and returns what the provider has sent with it; posted is that as an object if it was a form.
func awaitCallback(ctx context.Context, listener net.Listener) (query url.Values, posted map[string]any, err error) {
	type callback struct {
		query  url.Values
		posted map[string]any
	}
	arrived := make(chan callback, 1)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := callback{query: r.URL.Query()}
		if r.Method == http.MethodPost {
			r.Body = http.MaxBytesReader(w, r.Body, maxCallback)
			r.ParseForm() //nolint:errcheck // there is no state, then
			got = callback{r.PostForm, map[string]any{}}
			for name := range r.PostForm {
				got.posted[name] = r.PostForm.Get(name)
			}
			r.PostForm.Del("id_token") // which is in no URL
		}
		if r.URL.Path != oidcPath || got.query.Get("state") == "" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintln(w, "You can close this page and return to the terminal.")
		select {
		case arrived <- got:
		default: // another was first
		}
	})}
	go server.Serve(listener) //nolint:errcheck // it ends with the login
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		server.Shutdown(stop) //nolint:errcheck // the process ends soon
	}()
	select {
	case got := <-arrived:
		if text := got.query.Get("error"); text != "" {
			raw, _ := json.Marshal(text + " " + got.query.Get("error_description"))
			return nil, nil, command.ServerErrorf("the provider refused the login: %s", raw)
		}
		return got.query, got.posted, nil
	case <-time.After(oidcLoginTime):
		return nil, nil, command.ServerErrorf("the login was not completed in %v", oidcLoginTime)
	case <-ctx.Done():
		return nil, nil, errors.New("the login was interrupted")
	}
}
