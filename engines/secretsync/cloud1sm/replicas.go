package cloud1sm

import (
	"context"
	"errors"
	"maps"
	"slices"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// replica is the copy of a secret in another region.
type replica struct {
	key    string // "" is the account's own
	failed string // why there is no copy, "" if there is one or will be
}

func replicasOf(list []types.ReplicationStatusType) map[string]replica {
	all := map[string]replica{}
	for _, r := range list {
		is := replica{key: sdk.ToString(r.KmsKeyId)}
		if r.Status == types.StatusTypeFailed {
			is.failed = "it failed"
			if words := cloud1.Cleaned(sdk.ToString(r.StatusMessage)); words != "" {
				is.failed = words
			}
		}
		all[sdk.ToString(r.Region)] = is
	}
	return all
}

// keyName is what identifies a key. The account's own key is "".
func keyName(key string) string {
	if key = cloud1.KeyName(key); key == "alias/aws/secretsmanager" {
		return ""
	}
	return key
}

// additions returns replicas as calls take them.
func (c *Config) additions(regions []string) (list []types.ReplicaRegionType) {
	for _, region := range regions {
		to := types.ReplicaRegionType{Region: sdk.String(region)}
		if key := c.ReplicaRegions[region]; key != "" {
			to.KmsKeyId = sdk.String(key)
		}
		list = append(list, to)
	}
	return list
}

// protect gives a secret the key and the replicas of the configuration. What the configuration does not give stays as it is.
func (w *writing) protect(ctx context.Context, known *seen) error {
	if w.config.KMSKeyID != "" && keyName(w.config.KMSKeyID) != keyName(known.key) {
		_, err := cloud1.Do(ctx, w.Session, "UpdateSecret", true, w.api.UpdateSecret, &secretsmanager.UpdateSecretInput{SecretId: &w.was.ID, KmsKeyId: &w.config.KMSKeyID})
		if err != nil {
			return w.why(ctx, err)
		}
		w.begun = true
	}
	if w.config.ReplicaRegions == nil {
		return nil
	}
	var remove, add []string
	for region, is := range known.replicas {
		want, wanted := w.config.ReplicaRegions[region]
		if !wanted || keyName(want) != keyName(is.key) {
			remove = append(remove, region)
		}
	}
	for region, want := range w.config.ReplicaRegions {
		if is, ok := known.replicas[region]; !ok || is.failed != "" || keyName(want) != keyName(is.key) {
			add = append(add, region)
		}
	}
	if len(remove) > 0 {
		slices.Sort(remove)
		if err := w.unreplicate(ctx, w.was.ID, remove); err != nil {
			return w.why(ctx, err)
		}
		w.begun = true
	}
	if len(add) == 0 {
		return nil
	}
	slices.Sort(add)
	// A secret of the same name that is there already is another client's, and is not overwritten.
	out, err := cloud1.Do(ctx, w.Session, "ReplicateSecretToRegions", true, w.api.ReplicateSecretToRegions, &secretsmanager.ReplicateSecretToRegionsInput{
		SecretId: &w.was.ID, AddReplicaRegions: w.config.additions(add),
	})
	if err != nil {
		return w.why(ctx, err)
	}
	w.begun = true
	return failedReplica("ReplicateSecretToRegions", replicasOf(out.ReplicationStatus))
}

// failedReplica returns the error of the first replica that the service could not make.
func failedReplica(call string, all map[string]replica) error {
	for _, region := range slices.Sorted(maps.Keys(all)) {
		if why := all[region].failed; why != "" {
			return cloud1.Client(destination.BadRequest, call+": the secret cannot be replicated to "+region+": "+why)
		}
	}
	return nil
}

func (d *dest) unreplicate(ctx context.Context, id string, regions []string) error {
	_, err := cloud1.Do(ctx, d.Session, "RemoveRegionsFromReplication", true, d.api.RemoveRegionsFromReplication, &secretsmanager.RemoveRegionsFromReplicationInput{
		SecretId: &id, RemoveReplicaRegions: regions,
	})
	return err
}

// removeReplicas removes the copies of a secret, without which it cannot be deleted.
func (d *dest) removeReplicas(ctx context.Context, id string, replicas map[string]replica) error {
	if len(replicas) == 0 {
		return nil
	}
	err := d.unreplicate(ctx, id, slices.Sorted(maps.Keys(replicas)))
	if errors.Is(err, cloud1.NotFound) {
		return nil
	}
	return err
}
