package cloud1sm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager/types"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Write implements destination.Destination.
func (d *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	switch {
	case len(it.Value) == 0:
		return destination.Held{}, cloud1.Client(destination.BadRequest, "AWS takes no empty value: give the secret at least 1 byte")
	case len(it.Value) > maxValueBytes:
		return destination.Held{}, cloud1.Client(destination.TooLarge, fmt.Sprintf("AWS takes at most %d bytes, the value has %d", maxValueBytes, len(it.Value)))
	case checkName(it.Name) != "":
		return destination.Held{}, cloud1.Client(destination.BadRequest, checkName(it.Name))
	case was.State == destination.Absent:
		return d.create(ctx, it)
	case was.ID == "":
		return destination.Held{}, destination.InternalError("a write over something without an id")
	case was.Name != it.Name:
		return destination.Held{}, destination.InternalError("a write over something with another name")
	}
	w := &writing{dest: d, it: it, was: was}
	held, err := w.run(ctx)
	if err != nil {
		e, ok := errors.AsType[*destination.Error](err)
		if !ok {
			e = destination.InternalError("a write failed")
		}
		e.Unknown = e.Unknown || w.begun
		return destination.Held{}, e
	}
	return held, nil
}

// content puts a value where the service has it: texts as texts, because other programs look for them there.
func content(value []byte) (text *string, binary []byte) {
	if utf8.Valid(value) {
		return sdk.String(string(value)), nil
	}
	return nil, value
}

func listOf(tags map[string]string) (list []types.Tag) {
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		list = append(list, types.Tag{Key: sdk.String(key), Value: sdk.String(tags[key])})
	}
	return list
}

// create makes a secret with all that it has, or nothing.
func (d *dest) create(ctx context.Context, it destination.Item) (destination.Held, error) {
	tags := cloud1.Tags(it)
	if err := cloud1.CheckTags(len(tags)); err != nil {
		return destination.Held{}, err
	}
	in := &secretsmanager.CreateSecretInput{Name: &it.Name, ClientRequestToken: &it.Token, Tags: listOf(tags)}
	in.SecretString, in.SecretBinary = content(it.Value)
	if d.config.KMSKeyID != "" {
		in.KmsKeyId = &d.config.KMSKeyID
	}
	in.AddReplicaRegions = d.config.additions(slices.Sorted(maps.Keys(d.config.ReplicaRegions)))
	out, err := cloud1.Do(ctx, d.Session, "CreateSecret", true, d.api.CreateSecret, in)
	if errors.Is(err, cloud1.InvalidRequest) {
		return destination.Held{}, d.blocked(ctx, it.Name, err)
	}
	if err != nil {
		return destination.Held{}, err
	}
	if out.ARN == nil || sdk.ToString(out.Name) != it.Name || sdk.ToString(out.VersionId) != it.Token {
		return destination.Held{}, cloud1.UnexpectedResponse("CreateSecret", true)
	}
	return destination.Held{ID: *out.ARN, Version: it.Token}, nil
}

// blocked says why a name cannot be created although no secret has been found under it.
func (d *dest) blocked(ctx context.Context, name string, refusal error) error {
	found, err := d.describe(ctx, name)
	switch {
	case err != nil:
		return refusal
	case found.State == destination.Absent: // but its name is not free yet
		return recovering("CreateSecret: AWS is still deleting a secret of this name")
	case found.State == destination.Deleted:
		return cloud1.Client(destination.Exists, "CreateSecret: a secret of this name is scheduled for deletion")
	}
	return cloud1.Client(destination.Exists, "CreateSecret: there is a secret of this name")
}

func recovering(text string) *destination.Error {
	return &destination.Error{Class: destination.External, Code: destination.Recovering, Text: text}
}

// writing is one write over a secret that is there.
type writing struct {
	*dest
	it    destination.Item
	was   destination.Found
	begun bool // something of it can be seen at the destination
}

func (w *writing) run(ctx context.Context) (held destination.Held, err error) {
	known, ok := w.was.Handle.(*seen)
	if !ok {
		found, err := w.describe(ctx, w.was.ID)
		if err != nil {
			return held, err
		}
		if found.State != w.was.State {
			return held, changed()
		}
		known = found.Handle.(*seen)
	}
	set, unset, err := cloud1.TagChanges(w.it, known.tags)
	if err != nil {
		return held, err
	}
	if err := w.restore(ctx); err != nil {
		return held, err
	}
	if err := w.protect(ctx, known); err != nil {
		return held, err
	}
	if err := w.tag(ctx, set, unset); err != nil {
		return held, err
	}
	if w.was.State == destination.Present && w.was.Known && bytes.Equal(w.was.Value, w.it.Value) {
		return destination.Held{ID: w.was.ID, Version: w.was.Version}, nil // the service keeps few versions: none is made for nothing
	}
	if err := w.put(ctx); err != nil {
		return held, err
	}
	return destination.Held{ID: w.was.ID, Version: w.it.Token}, nil
}

func changed() *destination.Error {
	return cloud1.Client(destination.Changed, "another client has changed the secret since it was looked at")
}

// restore recovers a secret that is scheduled for deletion.
func (w *writing) restore(ctx context.Context) error {
	if w.was.State != destination.Deleted {
		return nil
	}
	_, err := cloud1.Do(ctx, w.Session, "RestoreSecret", true, w.api.RestoreSecret, &secretsmanager.RestoreSecretInput{SecretId: &w.was.ID})
	if err != nil {
		return w.why(ctx, err)
	}
	w.begun = true
	return nil
}

// tag sets the tags that are not there yet. Those that go make room first.
func (w *writing) tag(ctx context.Context, set map[string]string, unset []string) error {
	if len(unset) > 0 {
		_, err := cloud1.Do(ctx, w.Session, "UntagResource", true, w.api.UntagResource, &secretsmanager.UntagResourceInput{SecretId: &w.was.ID, TagKeys: unset})
		if err != nil {
			return w.why(ctx, err)
		}
		w.begun = true
	}
	if len(set) > 0 {
		_, err := cloud1.Do(ctx, w.Session, "TagResource", true, w.api.TagResource, &secretsmanager.TagResourceInput{SecretId: &w.was.ID, Tags: listOf(set)})
		if err != nil {
			return w.why(ctx, err)
		}
		w.begun = true
	}
	return nil
}

// put stores the value as a version that no client reads, then makes it the current one, if that is still the one that was found.
func (w *writing) put(ctx context.Context) error {
	in := &secretsmanager.PutSecretValueInput{SecretId: &w.was.ID, ClientRequestToken: &w.it.Token, VersionStages: []string{written}}
	in.SecretString, in.SecretBinary = content(w.it.Value)
	out, err := cloud1.Do(ctx, w.Session, "PutSecretValue", true, w.api.PutSecretValue, in)
	if errors.Is(err, cloud1.Exists) {
		return destination.InternalError("PutSecretValue: the token of this write has been used for another value")
	}
	if err != nil {
		return w.why(ctx, err)
	}
	if sdk.ToString(out.ARN) != w.was.ID || sdk.ToString(out.VersionId) != w.it.Token {
		return cloud1.UnexpectedResponse("PutSecretValue", true)
	}
	if slices.Contains(out.VersionStages, current) { // by an attempt before this one, or as the first version that there is
		return nil
	}
	move := &secretsmanager.UpdateSecretVersionStageInput{SecretId: &w.was.ID, VersionStage: sdk.String(current), MoveToVersionId: &w.it.Token}
	if w.was.Version != "" {
		move.RemoveFromVersionId = &w.was.Version
	}
	_, err = cloud1.Do(ctx, w.Session, "UpdateSecretVersionStage", true, w.api.UpdateSecretVersionStage, move)
	if err != nil {
		return w.why(ctx, err)
	}
	return nil
}

// why looks at a secret whose write was rejected: whether it is still the one that was found.
func (w *writing) why(ctx context.Context, refusal error) error {
	if errors.Is(refusal, cloud1.NotFound) {
		return changed()
	}
	if !errors.Is(refusal, cloud1.InvalidRequest) && !errors.Is(refusal, cloud1.InvalidParameter) {
		return refusal
	}
	is, err := w.describe(ctx, w.was.ID)
	switch {
	case err != nil:
		return refusal
	case is.State == destination.Absent:
		return changed()
	case is.State == destination.Deleted && w.was.State == destination.Deleted:
		return recovering("AWS has not recovered the secret yet")
	case is.State == destination.Deleted:
		return changed()
	case is.Version == w.it.Token: // another attempt of this very write was quicker
		return nil
	case is.Version != w.was.Version:
		return changed()
	}
	return refusal
}

// Delete implements destination.Destination. The name is free again only after the time for recovery, if there is one. The
// service has no call that deletes only what one has seen, so it is looked at once more.
func (d *dest) Delete(ctx context.Context, was destination.Found) error {
	days := d.config.recoveryDays()
	switch {
	case was.State == destination.Absent:
		return nil
	case was.ID == "":
		return destination.InternalError("a deletion of something without an id")
	case was.State == destination.Deleted && days != 0:
		return nil
	}
	is, err := d.describe(ctx, was.ID)
	switch {
	case err != nil:
		return err
	case is.State == destination.Absent, is.State == destination.Deleted && days != 0:
		return nil
	case is.State != was.State || is.OwnerTag != was.OwnerTag || !stillCurrent(is, was):
		return changed()
	}
	if err := d.removeReplicas(ctx, was.ID, is.Handle.(*seen).replicas); err != nil {
		return err
	}
	in := &secretsmanager.DeleteSecretInput{SecretId: &was.ID}
	if days == 0 {
		in.ForceDeleteWithoutRecovery = sdk.Bool(true)
	} else {
		in.RecoveryWindowInDays = sdk.Int64(int64(days))
	}
	_, err = cloud1.Do(ctx, d.Session, "DeleteSecret", true, d.api.DeleteSecret, in)
	switch {
	case err == nil, errors.Is(err, cloud1.NotFound):
		return nil
	case errors.Is(err, cloud1.InvalidRequest):
		if is, looked := d.describe(ctx, was.ID); looked == nil && is.State != destination.Present {
			return nil
		}
	}
	return err
}

// stillCurrent reports whether the version that was current is. One of several is enough: what of them is told as the current one
// is left to chance.
func stillCurrent(is, was destination.Found) bool {
	return is.Version == was.Version || slices.Contains(is.Handle.(*seen).stages[was.Version], current)
}
