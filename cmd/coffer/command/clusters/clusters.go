// Package clusters has the commands that say which server the other commands talk to, and as whom: contexts, whoami and ui.
package clusters

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/coffer-project/coffer/cmd/coffer/command"
	"github.com/coffer-project/coffer/cmd/coffer/command/browser"
	"github.com/coffer-project/coffer/cmd/coffer/command/response"
	"github.com/coffer-project/coffer/cmd/coffer/command/table"
	"github.com/coffer-project/coffer/cmd/coffer/local"
	"github.com/urfave/cli/v3"
)

// WhoamiCommand is "coffer whoami".
func WhoamiCommand() *cli.Command {
	return command.New(command.Spec{
		Name: "whoami", Usage: "show which server commands talk to, and as whom",
		Help: `Shows the server, where its address and the token come from, and what the token is: its name, policies and time left.

Examples:

  $ coffer whoami
  $ coffer whoami -field=display_name`,
		Flags: []cli.Flag{command.FieldFlag()},
	}, whoami)
}

func whoami(ctx context.Context, c *command.Call) error {
	client, err := c.Connect()
	if err != nil {
		return err
	}
	address, token := sources(c)
	a, err := c.Get(ctx, "auth/token/lookup-self")
	if err != nil {
		if command.StatusOf(err) == 403 {
			c.Warnf("The server is %s (%s), the token is from: %s", client.Address(), address, token)
		}
		return err
	}
	if a.Secret == nil { // printed as a command of curl
		return nil
	}
	data := a.Data()
	rows := []response.Row{
		{Key: "address", Value: client.Address()}, {Key: "address_source", Value: address}, {Key: "token_source", Value: token},
		{Key: "namespace", Value: client.Headers().Get("X-Vault-Namespace")},
	}
	for _, key := range []string{"display_name", "entity_id", "policies", "identity_policies", "type", "ttl", "renewable", "accessor"} {
		if v, ok := data[key]; ok {
			if key == "ttl" && data["expire_time"] == nil {
				v = response.TokenDuration(0)
			}
			rows = append(rows, response.Row{Key: key, Value: v})
		}
	}
	if c.String("field") != "" {
		return c.PrintField(rows)
	}
	if c.Format() == command.FormatTable {
		return c.PrintTable(rows)
	}
	all := map[string]any{}
	for _, r := range rows {
		all[r.Key] = r.Value
	}
	return c.PrintValue(all)
}

// sources says where the address and the token come from.
func sources(c *command.Call) (address, token string) {
	name, active, _ := local.ActiveContext()
	address, token = "the default", "none"
	variable := func(part string) string {
		for _, prefix := range []string{"COFFER_", "BAO_", "VAULT_"} {
			if os.Getenv(prefix+part) != "" {
				return prefix + part
			}
		}
		return ""
	}
	flag := c.String("address") != ""
	switch {
	case flag:
		address, name = "-address", ""
	case name != "":
		address = "context " + name
	case variable("ADDR") != "":
		address = variable("ADDR")
	}
	switch {
	case variable("TOKEN") != "":
		token = variable("TOKEN")
	case name != "" && active.InKeyring:
		token = "the keyring, for the context " + name
	case name != "" && active.Token != "":
		token = "context " + name
	case name == "":
		if stored, err := local.StoredToken(); err == nil && stored != "" {
			token = "~/" + strings.Join(local.TokenFiles, " or ~/")
		}
	}
	return address, token
}

// UICommand is "coffer ui".
func UICommand() *cli.Command {
	return command.New(command.Spec{
		Name: "ui", Usage: "open the web UI in the browser",
		Help: `Opens the web UI of the server in the browser, and prints its address. No token is in it: the UI asks for one.

Examples:

  $ coffer ui
  $ coffer ui -print`,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "print", Usage: "print the address only"}},
	}, func(ctx context.Context, c *command.Call) error {
		client, err := c.SendingClient()
		if err != nil {
			return err
		}
		page := strings.TrimRight(client.Address(), "/") + "/ui/"
		if ns := command.CleanPath(client.Headers().Get("X-Vault-Namespace")); ns != "" {
			page += "?namespace=" + url.QueryEscape(ns)
		}
		if _, err := fmt.Fprintln(c.Out, page); err != nil || c.Bool("print") {
			return err
		}
		if why := browser.Unusable(); why != "" {
			c.Warnf("No browser was opened: %s.", why)
			return nil
		}
		select {
		case err = <-browser.Open(page):
		case <-ctx.Done():
		}
		if err != nil {
			c.Warnf("No browser was opened: %v", err)
		}
		return nil
	})
}

// ContextCommand is "coffer context".
func ContextCommand() *cli.Command {
	return command.Group("context", "keep several clusters, and say which one to use", `Commands for contexts: clusters with their addresses, certificates and namespaces, in the file ~/.coffer-contexts, which no other
user can read. One is in use; COFFER_CONTEXT names another for one command. "coffer login" keeps the token for the context in use: in
the keyring of the system, or in the file where there is no keyring, with -keyring=false, or with COFFER_KEYRING=off.

COFFER_ADDR, BAO_ADDR, VAULT_ADDR and -address go before the context in use, whose token is not sent to those servers.

Examples:

  $ coffer context set -use prod https://coffer.example.com:8200
  $ coffer login -method=oidc
  $ COFFER_CONTEXT=staging coffer kv get secret/app`,
		command.New(command.Spec{
			Name: "set", Args: "NAME ADDRESS", Min: 2, Max: 2, Usage: "add a cluster, or change it", Local: true,
			Help: `Adds a cluster, or replaces its settings. Its token is kept if the address is the same. With -keyring=false one that was in the
keyring is removed: log in again.

Examples:

  $ coffer context set prod https://coffer.example.com:8200
  $ coffer context set -use -ca-cert=/etc/coffer/ca.pem -namespace=shop shop https://10.0.0.7:8200`,
			Flags: []cli.Flag{
				&cli.StringFlag{Name: "namespace", Aliases: []string{"ns"}, Usage: "namespace `PATH` of requests"},
				&cli.StringFlag{Name: "ca-cert", Usage: "`FILE` with the CA certificates to trust"},
				&cli.StringFlag{Name: "client-cert", Usage: "`FILE` with the certificate to present"},
				&cli.StringFlag{Name: "client-key", Usage: "`FILE` with its private key"},
				&cli.StringFlag{Name: "tls-server-name", Usage: "`NAME` to expect in the server's certificate"},
				&cli.BoolFlag{Name: "keyring", Value: true, Usage: "keep its token in the keyring of the system; =false: in the file"},
				&cli.BoolFlag{Name: "use", Usage: "use it from now on"},
			},
		}, set),
		command.New(command.Spec{
			Name: "use", Args: "NAME", Min: 1, Max: 1, Usage: "use a cluster from now on", Local: true,
			Help: `Makes a context the one that commands use. "-" means none.

Examples:

  $ coffer context use prod
  $ coffer context use -`,
		}, use),
		command.New(command.Spec{
			Name: "list", Usage: "list the clusters", Local: true,
			Help: `Lists the clusters. The one in use has a star.

Examples:

  $ coffer context list
  $ coffer context list -format=json`,
			Flags: []cli.Flag{&cli.StringFlag{Name: "format", Usage: "print as `table|json|yaml`"}},
		}, list),
		command.New(command.Spec{
			Name: "forget", Args: "NAME", Min: 1, Max: 1, Usage: "remove a cluster and its token", Local: true,
			Help: `Removes a cluster, and its token from the keyring or the file. The token stays valid: "coffer token revoke -self" ends it before.

Examples:

  $ coffer context forget staging
  $ COFFER_CONTEXT=staging coffer token revoke -self && coffer context forget staging`,
		}, forget))
}

func set(_ context.Context, c *command.Call) error {
	all, err := local.ReadContexts()
	if err != nil {
		return err
	}
	name, address := c.Arg(0), c.Arg(1)
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return command.Usagef("the address is a URL such as https://coffer.example.com:8200")
	}
	if name == "-" || strings.ContainsFunc(name, table.IsControl) || name == "" {
		return command.Usagef("a context has a name, such as prod")
	}
	cluster := local.Context{
		Address: address, Namespace: command.CleanPath(c.String("namespace")), CACert: c.String("ca-cert"),
		ClientCert: c.String("client-cert"), ClientKey: c.String("client-key"), TLSServerName: c.String("tls-server-name"),
		NoKeyring: !c.Bool("keyring"),
	}
	old := all.Clusters[name]
	if old.Address == address && !(old.InKeyring && cluster.NoKeyring) {
		cluster.Token, cluster.InKeyring = old.Token, old.InKeyring
	} else if err := local.ForgetToken(name, old); err != nil {
		c.Warnf("Warning: the former token stays in the keyring: %v", err)
	}
	all.Clusters[name] = cluster
	if c.Bool("use") {
		all.Current = name
	}
	if err := all.Write(); err != nil {
		return err
	}
	c.Sayf("Success! The context %s is kept.", name)
	return nil
}

func use(_ context.Context, c *command.Call) error {
	all, err := local.ReadContexts()
	if err != nil {
		return err
	}
	name := c.Arg(0)
	if name == "-" {
		name = ""
	} else if _, ok := all.Clusters[name]; !ok {
		return missing(name)
	}
	all.Current = name
	if err := all.Write(); err != nil {
		return err
	}
	for _, variable := range []string{"COFFER_ADDR", "BAO_ADDR", "VAULT_ADDR"} {
		if os.Getenv(variable) != "" && name != "" {
			c.Warnf("Warning: %s is set and goes before the context. Unset it to use that.", variable)
		}
	}
	if name == "" {
		c.Sayf("No context is in use.")
		return nil
	}
	c.Sayf("Success! Commands use %s, at %s.", name, all.Clusters[name].Address)
	return nil
}

func list(_ context.Context, c *command.Call) error {
	all, err := local.ReadContexts()
	if err != nil {
		return err
	}
	current := all.Current
	if named := os.Getenv("COFFER_CONTEXT"); named != "" {
		current = named
	}
	rows := [][]string{}
	values := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(all.Clusters)) {
		cluster := all.Clusters[name]
		mark, token := "", "no"
		if name == current {
			mark = "*"
		}
		switch {
		case cluster.InKeyring:
			token = "in the keyring"
		case cluster.Token != "":
			token = "yes"
		}
		rows = append(rows, []string{mark, table.Printable(name), table.Printable(cluster.Address), table.Text(cluster.Namespace), token})
		values = append(values, map[string]any{
			"name": name, "address": cluster.Address, "namespace": cluster.Namespace, "current": name == current,
			"token": cluster.Token != "" || cluster.InKeyring, "in_keyring": cluster.InKeyring,
		})
	}
	if c.Format() != command.FormatTable {
		return c.PrintValue(values)
	}
	return c.PrintColumns([]string{" ", "Name", "Address", "Namespace", "Token"}, rows)
}

func forget(_ context.Context, c *command.Call) error {
	all, err := local.ReadContexts()
	if err != nil {
		return err
	}
	name := c.Arg(0)
	if _, ok := all.Clusters[name]; !ok {
		return missing(name)
	}
	if err := local.ForgetToken(name, all.Clusters[name]); err != nil {
		c.Warnf("Warning: the token stays in the keyring: %v", err)
	}
	delete(all.Clusters, name)
	if all.Current == name {
		all.Current = ""
	}
	if err := all.Write(); err != nil {
		return err
	}
	c.Sayf("Success! The context %s is forgotten.", name)
	return nil
}

func missing(name string) error {
	return command.Usagef("there is no context %q: coffer context list shows those there are", name)
}
