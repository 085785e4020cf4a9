package cloud2kv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"sync/atomic"
	"testing"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azsecrets/fake"

	"github.com/coffer-project/coffer/engines/secretsync/cloud2kv/cloud2kvtest"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// typed is the vendor's own server for tests, with the fake vault behind it. The vendor's code takes requests apart and puts
// answers together, so nothing gets to the vault, or back, that the vendor has no name for.
type typed struct {
	t      *testing.T
	vault  http.RoundTripper
	server *fake.ServerTransport
	token  atomic.Value // of the last request: the vendor's server does not hand it on
}

// RoundTrip implements http.RoundTripper.
func (s *typed) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Hostname() != cloud2kvtest.Host {
		return s.vault.RoundTrip(r)
	}
	if token := r.Header.Get("Authorization"); token != "" {
		s.token.Store(token)
	}
	resp, err := s.server.Do(r)
	if told, ok := errors.AsType[*rejected](err); ok {
		return told.answer, nil
	}
	return resp, err
}

// rejected is a response of the vault's that is no success. The vendor's server can only make up one of its own.
type rejected struct{ answer *http.Response }

func (*rejected) Error() string { return "the vault rejects" }

func newTyped(t *testing.T, vault http.RoundTripper) *typed {
	s := &typed{t: t, vault: vault}
	s.server = fake.NewServerTransport(&fake.Server{
		GetSecret: func(ctx context.Context, name, version string, _ *azsecrets.GetSecretOptions) (azfake.Responder[azsecrets.GetSecretResponse], azfake.ErrorResponder) {
			got, err := ask[azsecrets.Secret](ctx, s, http.MethodGet, "/secrets/"+name+"/"+version, nil)
			return respond(azsecrets.GetSecretResponse{Secret: got}, err)
		},
		SetSecret: func(ctx context.Context, name string, in azsecrets.SetSecretParameters, _ *azsecrets.SetSecretOptions) (azfake.Responder[azsecrets.SetSecretResponse], azfake.ErrorResponder) {
			got, err := ask[azsecrets.Secret](ctx, s, http.MethodPut, "/secrets/"+name, in)
			return respond(azsecrets.SetSecretResponse{Secret: got}, err)
		},
		DeleteSecret: func(ctx context.Context, name string, _ *azsecrets.DeleteSecretOptions) (azfake.Responder[azsecrets.DeleteSecretResponse], azfake.ErrorResponder) {
			got, err := ask[azsecrets.DeletedSecret](ctx, s, http.MethodDelete, "/secrets/"+name, nil)
			return respond(azsecrets.DeleteSecretResponse{DeletedSecret: got}, err)
		},
		GetDeletedSecret: func(ctx context.Context, name string, _ *azsecrets.GetDeletedSecretOptions) (azfake.Responder[azsecrets.GetDeletedSecretResponse], azfake.ErrorResponder) {
			got, err := ask[azsecrets.DeletedSecret](ctx, s, http.MethodGet, "/deletedsecrets/"+name, nil)
			return respond(azsecrets.GetDeletedSecretResponse{DeletedSecret: got}, err)
		},
		RecoverDeletedSecret: func(ctx context.Context, name string, _ *azsecrets.RecoverDeletedSecretOptions) (azfake.Responder[azsecrets.RecoverDeletedSecretResponse], azfake.ErrorResponder) {
			got, err := ask[azsecrets.Secret](ctx, s, http.MethodPost, "/deletedsecrets/"+name+"/recover", nil)
			return respond(azsecrets.RecoverDeletedSecretResponse{Secret: got}, err)
		},
		NewListSecretPropertiesPager: func(*azsecrets.ListSecretPropertiesOptions) azfake.PagerResponder[azsecrets.ListSecretPropertiesResponse] {
			return pages(s, "/secrets", func(p azsecrets.SecretPropertiesListResult) azsecrets.ListSecretPropertiesResponse {
				return azsecrets.ListSecretPropertiesResponse{SecretPropertiesListResult: p}
			})
		},
		NewListSecretPropertiesVersionsPager: func(name string, _ *azsecrets.ListSecretPropertiesVersionsOptions) azfake.PagerResponder[azsecrets.ListSecretPropertiesVersionsResponse] {
			return pages(s, "/secrets/"+name+"/versions", func(p azsecrets.SecretPropertiesListResult) azsecrets.ListSecretPropertiesVersionsResponse {
				return azsecrets.ListSecretPropertiesVersionsResponse{SecretPropertiesListResult: p}
			})
		},
	})
	return s
}

func respond[T any](answer T, err error) (resp azfake.Responder[T], failed azfake.ErrorResponder) {
	if err != nil {
		failed.SetError(err)
	} else {
		resp.SetResponse(http.StatusOK, answer, nil)
	}
	return resp, failed
}

// pages gets all pages of a list, to which the vendor's server makes links of its own.
func pages[T any](s *typed, path string, wrap func(azsecrets.SecretPropertiesListResult) T) (resp azfake.PagerResponder[T]) {
	for link := path; link != ""; {
		page, err := ask[azsecrets.SecretPropertiesListResult](s.t.Context(), s, http.MethodGet, link, nil)
		if err != nil {
			resp.AddError(err)
			return resp
		}
		link = ""
		if page.NextLink != nil {
			link, page.NextLink = *page.NextLink, nil
		}
		resp.AddPage(http.StatusOK, wrap(page), nil)
	}
	return resp
}

// ask hands the vault what the vendor's server has understood, and reads its response into the vendor's type, which must have a
// place for all that is in it.
func ask[T any](ctx context.Context, s *typed, method, where string, in any) (out T, err error) {
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return out, err
		}
	}
	if where[0] == '/' {
		where = "https://" + cloud2kvtest.Host + where + "?api-version=" + apiVersion
	}
	r, err := http.NewRequestWithContext(ctx, method, where, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	r.Header.Set("Authorization", s.token.Load().(string))
	r.Header.Set("Content-Type", "application/json")
	resp, err := s.vault.RoundTrip(r)
	if err != nil {
		return out, err
	}
	if resp.StatusCode != http.StatusOK {
		return out, &rejected{resp}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	again, _ := json.Marshal(out)
	if said, kept := members(text), members(again); !reflect.DeepEqual(said, kept) {
		s.t.Errorf("%s %s: the fake vault answers %v, of which the vendor's types keep %v", method, r.URL.Path, said, kept)
	}
	return out, err
}

// members decodes an object, without what is null.
func members(text []byte) map[string]any {
	all := map[string]any{}
	_ = json.Unmarshal(text, &all) // what is no object has none
	for name, value := range all {
		if value == nil {
			delete(all, name)
		}
	}
	return all
}

// typedVault is a destination behind the vendor's server.
type typedVault struct{ *faultyVault }

func (p typedVault) Open(t *testing.T) destination.Destination {
	client := p.Client()
	client.Transport = newTyped(t, client.Transport)
	return opened(t, config(), destination.Env{Client: client})
}

// TestDestinationBehindTheVendorsFake: there the vault takes its time to delete and to recover, too.
func TestDestinationBehindTheVendorsFake(t *testing.T) {
	desttest.Run(t, Type, func(t *testing.T) desttest.Fake {
		p := newFaultyVault(t)
		p.Lag(2)
		return typedVault{p}
	})
}
