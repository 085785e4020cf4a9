// Package githubapps serves sys/sync/github-apps: the GitHub Apps that destinations of the namespace sign in as. Start reading at API.Routes.
package githubapps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/api"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/githubapp"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// API serves the paths below sys/sync/github-apps.
type API struct {
	Store func() storage.Store
	Pool  *connection.Pool
}

// flags of all routes, as those of destinations.
const flags = engines.Primary | engines.Active

type listIn struct{}

type appIn struct {
	Name string `json:"name" max:"128" help:"Name of the app here, which the field app_name of destinations has."`
}

type appWriteIn struct {
	appIn
	ID         int64             `json:"app_id" help:"App ID of the GitHub App, as its settings show it."`
	PrivateKey engines.Sensitive `json:"private_key" max:"16384" help:"Private key of the app: the content of the PEM file that GitHub has created for it."`
	URL        string            `json:"enterprise_url" form:"name" max:"255" help:"GitHub installation that the app is of, as in destinations. Without it, it is github.com. The key is used nowhere else."`
}

// Routes declares the paths below sys/.
func (s *API) Routes(r *engines.Router) {
	const pattern = "sync/github-apps/{name}"
	engines.On(r, engines.Update, pattern, "Store a GitHub App that destinations can sign in as, or change it.", flags|engines.Strict, visible(s.writeApp)).
		Returns("app_id: integer, created_at, enterprise_url, fingerprint, name, private_key, updated_at").Exists = func(ctx context.Context, req *engines.Request) (bool, error) {
		found, err := engines.GetRecord(ctx, s.Store(), githubapp.Key(req.Mount.NamespaceID, req.Param("name")), new(githubapp.App))
		return found, api.ClientError(err)
	}
	engines.On(r, engines.Read, pattern, "Read a GitHub App. Its private key is masked.", flags, visible(s.readApp)).
		Returns("app_id: integer, created_at, fingerprint, name, private_key, updated_at")
	engines.On(r, engines.Delete, pattern, "Delete a GitHub App that no destination signs in as.", flags|engines.Strict, visible(s.deleteApp))
	engines.On(r, engines.List, "sync/github-apps", "List the GitHub Apps of the namespace.", flags, visible(s.listApps)).
		Returns("keys: [string]")
}

// visible makes errors about unreadable records ones that the client may see.
func visible[In any](do engines.Handler[In]) engines.Handler[In] {
	return func(ctx context.Context, req *engines.Request, in *In) (*engines.Response, error) {
		resp, err := do(ctx, req, in)
		return resp, api.ClientError(err)
	}
}

var legalName = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

func describeApp(a *githubapp.App) (map[string]any, error) {
	key, err := githubapp.ParseKey(a.PrivateKey)
	if err != nil {
		return nil, err
	}
	out := map[string]any{
		"name": a.Name, "app_id": a.ID, "private_key": destination.Mask, "fingerprint": githubapp.Fingerprint(key), "created_at": a.CreatedAt, "updated_at": a.UpdatedAt,
	}
	if a.URL != "" {
		out["enterprise_url"] = a.URL
	}
	return out, nil
}

// writeApp stores an app. The destinations that sign in as it are stored with it, so that they are opened again with the new key, and what
// has failed there is tried again.
func (s *API) writeApp(ctx context.Context, req *engines.Request, in *appWriteIn) (*engines.Response, error) {
	if !legalName.MatchString(in.Name) {
		return nil, engines.Invalid(`field "name": may hold letters, digits, "-", "_" and "." only`)
	}
	ns := req.Mount.NamespaceID
	var a githubapp.App
	_, err := storage.Update(ctx, s.Store(), func(tx *storage.Txn) error {
		now := time.Now().UTC()
		a = githubapp.App{NS: ns, Name: in.Name, CreatedAt: now}
		if _, err := engines.GetRecord(ctx, tx, a.Key(), &a); err != nil {
			return err
		}
		used, err := s.destinationsOfApp(ctx, ns, in.Name)
		if err != nil {
			return err
		}
		before := a
		problems := mergeApp(&a, req, in)
		if a.URL != before.URL && len(used) > 0 {
			problems = append(problems, fmt.Sprintf(`field "enterprise_url": destinations sign in as the app there (%s): store another app`, listed(used)))
		}
		if len(problems) > 0 {
			return engines.Invalid("%s", strings.Join(problems, "; "))
		}
		for _, key := range used {
			var d state.Destination
			if _, err := state.GetDestination(ctx, tx, key, &d); err != nil {
				return err
			}
			if d.ID == "" {
				continue
			}
			d.UpdatedAt = now
			if err := engines.PutRecord(tx, key, &d); err != nil {
				return err
			}
		}
		a.UpdatedAt = now
		return engines.PutRecord(tx, a.Key(), &a)
	})
	if err != nil {
		return nil, err
	}
	data, err := describeApp(&a)
	return &engines.Response{Data: data}, err
}

// mergeApp puts what came with a request into an app, and returns everything that is wrong with it. A caller who does not know the stored
// key cannot have it used at another installation, or for another app.
func mergeApp(a *githubapp.App, req *engines.Request, in *appWriteIn) (problems []string) {
	before := *a
	if req.Given("app_id") {
		a.ID = in.ID
	}
	if req.Given("enterprise_url") || req.Null("enterprise_url") {
		url, problem := githubapp.NormalizeURL(in.URL)
		if a.URL = url; problem != "" {
			problems = append(problems, `field "enterprise_url": `+problem)
		}
	}
	given := strings.TrimSpace(in.PrivateKey.Reveal())
	if given == destination.Mask {
		given = ""
	}
	if a.ID < 1 {
		problems = append(problems, `field "app_id": must be given: the App ID that the settings of the app show`)
	}
	switch {
	case given == "" && a.PrivateKey == "":
		problems = append(problems, `field "private_key": must be given: the content of the PEM file that GitHub has created for the app`)
	case given == "" && (a.ID != before.ID || a.URL != before.URL):
		problems = append(problems, `field "private_key": give it, too: it would be another app, and what is stored is not used for that`)
	case given != "":
		if _, err := githubapp.ParseKey(given); err != nil {
			problems = append(problems, `field "private_key": `+err.Error())
		}
		a.PrivateKey = given
	}
	return problems
}

func (s *API) readApp(ctx context.Context, req *engines.Request, in *appIn) (*engines.Response, error) {
	var a githubapp.App
	found, err := engines.GetRecord(ctx, s.Store(), githubapp.Key(req.Mount.NamespaceID, in.Name), &a)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, engines.NotFound("")
	}
	data, err := describeApp(&a)
	return &engines.Response{Data: data}, err
}

func (s *API) deleteApp(ctx context.Context, req *engines.Request, in *appIn) (*engines.Response, error) {
	_, err := storage.Update(ctx, s.Store(), func(tx *storage.Txn) error {
		a := githubapp.App{NS: req.Mount.NamespaceID, Name: in.Name}
		if found, err := engines.GetRecord(ctx, tx, a.Key(), &a); !found || err != nil {
			return err
		}
		used, err := s.destinationsOfApp(ctx, a.NS, a.Name)
		if err != nil {
			return err
		}
		if len(used) > 0 {
			return engines.Invalid("destinations sign in as the app (%s): delete them first, or give them other credentials", listed(used))
		}
		tx.Delete(a.Key())
		return nil
	})
	return nil, err
}

func (s *API) listApps(ctx context.Context, req *engines.Request, _ *listIn) (*engines.Response, error) {
	names, err := s.Store().List(ctx, githubapp.Key(req.Mount.NamespaceID, ""), "", 0)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, engines.NotFound("")
	}
	return &engines.Response{Data: map[string]any{"keys": names}}, nil
}

// destinationsOfApp returns the keys of the destinations that sign in as an app. One that cannot be read may be among them, and is an
// error.
func (s *API) destinationsOfApp(ctx context.Context, ns, app string) (keys []storage.Key, err error) {
	for _, kind := range slices.Sorted(maps.Keys(s.Pool.Types)) {
		if _, ok := s.Pool.Types[kind].New().(destination.AppUser); !ok {
			continue
		}
		var failed error
		err := state.Scan(ctx, s.Store(), state.DestinationKey(ns, kind, ""), func(key storage.Key, d *state.Destination) bool {
			c, err := s.Pool.ConfigOf(d)
			if failed = err; err == nil && connection.AppOf(c) == app {
				keys = append(keys, key)
			}
			return err == nil
		})
		switch {
		case errors.Is(failed, connection.ErrUnknownType):
			return nil, &engines.Error{Kind: engines.KindFailed, Detail: "a destination of the namespace was stored by a later version, and may sign in as the app: upgrade all nodes first", Err: failed}
		case cmp.Or(err, failed) != nil:
			return nil, cmp.Or(err, failed)
		}
	}
	return keys, nil
}

// listed returns the names of destinations for an error: three at most.
func listed(keys []storage.Key) string {
	var names []string
	for _, key := range keys[:min(len(keys), 3)] {
		_, _, rest := state.SplitKey(key)
		names = append(names, rest)
	}
	if more := len(keys) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
