package accesskey

import (
	"context"

	"github.com/coffer-project/coffer/engines/cloud/aws"
)

const keyTries = 3

// ForNewUser creates the key of a new user. After a lost response there may be a key whose secret is lost: ForNewUser deletes it.
func ForNewUser(ctx context.Context, api aws.API, user string) (aws.Credentials, error) {
	for try := 1; ; try++ {
		key, err := api.CreateAccessKey(ctx, user)
		if aws.KindOf(err) != aws.Unavailable || try == keyTries {
			return key, err
		}
		keys, e := api.ListAccessKeys(ctx, user)
		if e != nil {
			return key, err
		}
		for _, k := range keys {
			if api.DeleteAccessKey(ctx, user, k.ID) != nil {
				return key, err
			}
		}
	}
}
