package cloud3sm

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"golang.org/x/sync/errgroup"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	pageSize = 500
	maxPages = 10_000
	atOnce   = 8 // accesses while listing
)

// List implements destination.Destination. The listing itself says nothing of versions, and a new version leaves a secret's
// etag as it is. So for each secret with a mark the latest one is asked for, as an access, of which the vendor allows 150
// times as many as of all other reads.
func (p *dest) List(ctx context.Context) iter.Seq2[destination.Found, error] {
	return func(yield func(destination.Found, error) bool) {
		defer p.enter()()
		token := ""
		var blind atomic.Bool
		for range maxPages {
			page, next, err := p.page(ctx, pageSize, token)
			var all []destination.Found
			if err == nil {
				all, err = p.foundAll(ctx, page, &blind)
			}
			for _, f := range all {
				if !yield(f, nil) {
					return
				}
			}
			if err != nil {
				yield(destination.Found{}, err)
				return
			}
			if next == "" {
				return
			}
			if next == token {
				break
			}
			token = next
		}
		yield(destination.Found{}, unexpected("the list of Secret Manager does not end"))
	}
}

// foundAll says what is known of the secrets of a page. blind is set once it is seen that versions may not be accessed, and
// they are left out.
func (p *dest) foundAll(ctx context.Context, page []*secretmanagerpb.Secret, blind *atomic.Bool) ([]destination.Found, error) {
	all := make([]destination.Found, len(page))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for i, s := range page {
		f, err := found(s)
		if err != nil {
			_ = group.Wait()
			return nil, err
		}
		all[i] = f
		if f.OwnerTag == "" {
			continue
		}
		group.Go(func() error {
			if blind.Load() {
				return nil
			}
			v, err := p.latest(ctx, opAccess, s)
			switch {
			case errors.Is(err, errDenied) || err == nil && !v.known && v.n > 0 && v.state == "":
				blind.Store(true)
				return nil
			case err != nil:
				return err
			}
			all[i].Version = v.id()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return all, nil
}

// page returns one page of the list, and the token of the next, "" after the last.
func (p *dest) page(ctx context.Context, size int32, token string) (page []*secretmanagerpb.Secret, next string, err error) {
	_, err = call(ctx, p, opList, func(ctx context.Context) (struct{}, error) {
		list := p.api.ListSecrets(ctx, &secretmanagerpb.ListSecretsRequest{Parent: p.parent(), PageSize: size, PageToken: token})
		for {
			s, err := list.Next()
			if err != nil {
				return struct{}{}, doneIsNil(err)
			}
			page = append(page, s)
			if list.PageInfo().Remaining() == 0 {
				next = list.PageInfo().Token
				return struct{}{}, nil
			}
		}
	})
	return page, next, err
}
