package cloud1ssm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

// Write implements destination.Destination.
func (d *dest) Write(ctx context.Context, it destination.Item, was destination.Found) (destination.Held, error) {
	switch {
	case len(it.Value) == 0:
		return destination.Held{}, cloud1.Client(destination.BadRequest, "AWS takes no empty value: give the secret at least 1 byte")
	case len(it.Value) > maxValue:
		return destination.Held{}, cloud1.Client(destination.TooLarge, fmt.Sprintf("AWS takes at most %d bytes, the value has %d", maxValue, len(it.Value)))
	case checkValue(it.Value) != "":
		return destination.Held{}, cloud1.Client(destination.BadRequest, checkValue(it.Value))
	case checkName(it.Name) != "":
		return destination.Held{}, cloud1.Client(destination.BadRequest, checkName(it.Name))
	case was.State == destination.Absent:
		return d.create(ctx, it)
	case was.ID != it.Name:
		return destination.Held{}, destination.InternalError("a write over something with another name")
	}
	w := &writing{dest: d, it: it, was: was}
	held, err := w.run(ctx)
	if e, ok := errors.AsType[*destination.Error](err); ok {
		e.Unknown = e.Unknown || w.begun
	}
	return held, err
}

// tier returns the tier that a parameter is written with, which has another so far, "" if it is new.
func (d *dest) tier(is string, size int) (string, error) {
	tier := cmp.Or(d.config.Tier, is, standard)
	if tier != standard {
		return tier, nil
	}
	if is == advanced {
		return "", cloud1.Client(destination.BadRequest, "the parameter is of the tier Advanced, and AWS does not turn it into Standard: set tier to Advanced, or delete the parameter")
	}
	if size > maxStandard {
		return "", cloud1.Client(destination.TooLarge, fmt.Sprintf("AWS takes at most %d bytes in a parameter of the tier Standard, the value has %d: "+
			"set tier to Advanced or Intelligent-Tiering, which take %d", maxStandard, size, maxValue))
	}
	return tier, nil
}

// create makes a parameter with all that it has, or nothing.
func (d *dest) create(ctx context.Context, it destination.Item) (destination.Held, error) {
	of := cloud1.Tags(it)
	if err := cloud1.CheckTags(len(of)); err != nil {
		return destination.Held{}, err
	}
	tier, err := d.tier("", len(it.Value))
	if err != nil {
		return destination.Held{}, err
	}
	in := object{"Tags": listOf(of), "Overwrite": false, "Tier": tier}
	if d.config.KMSKeyID != "" {
		in["KeyId"] = d.config.KMSKeyID
	}
	held, _, err := d.put(ctx, it, in)
	return held, err
}

// put writes a value, and returns its number.
func (d *dest) put(ctx context.Context, it destination.Item, in object) (destination.Held, int64, error) {
	in["Name"], in["Value"], in["Type"] = it.Name, string(it.Value), d.config.kind()
	out, err := cloud1.Call[struct{ Version int64 }](ctx, d.Session, "PutParameter", true, in)
	if err != nil {
		return destination.Held{}, 0, err
	}
	if out.Version < 1 {
		return destination.Held{}, 0, cloud1.UnexpectedResponse("PutParameter", true)
	}
	is, err := d.get(ctx, fmt.Sprintf("%s:%d", it.Name, out.Version), false) // for its time
	if err != nil {
		if e, ok := errors.AsType[*destination.Error](err); ok {
			e.Unknown = true
		}
		return destination.Held{}, 0, err
	}
	return destination.Held{ID: it.Name, Version: is.version()}, out.Version, nil
}

func listOf(of map[string]string) (list []tag) {
	for _, key := range slices.Sorted(maps.Keys(of)) {
		list = append(list, tag{key, of[key]})
	}
	return list
}

// writing is one write over a parameter that is there.
type writing struct {
	*dest
	it    destination.Item
	was   destination.Found
	begun bool // something of it can be seen at the destination
}

func changed() *destination.Error {
	return cloud1.Client(destination.Changed, "another client has changed the parameter since it was looked at")
}

func (w *writing) run(ctx context.Context) (held destination.Held, err error) {
	is, err := w.current(ctx)
	if err != nil {
		return held, err
	}
	if is.Type != w.config.kind() {
		return held, cloud1.Client(destination.BadRequest, fmt.Sprintf("the parameter is a %s, and AWS does not turn it into a %s: delete it at AWS, or use another name or parameter_type", is.Type, w.config.kind()))
	}
	tier, err := w.tier(is.Tier, len(w.it.Value))
	if err != nil {
		return held, err
	}
	are, ok := w.was.Handle.(tags)
	if !ok {
		if are, err = w.tags(ctx, w.it.Name); err != nil {
			return held, err
		}
	}
	set, unset, err := cloud1.TagChanges(w.it, are)
	if err != nil {
		return held, err
	}
	if err := w.tag(ctx, set, unset); err != nil {
		return held, err
	}
	key := is.KeyID
	moved := w.config.KMSKeyID != "" && cloud1.KeyName(w.config.KMSKeyID) != cloud1.KeyName(key)
	if w.was.Known && bytes.Equal(w.was.Value, w.it.Value) && !moved && (w.config.Tier != advanced || is.Tier == advanced) {
		return destination.Held{ID: w.was.ID, Version: w.was.Version}, nil
	}
	in := object{"Overwrite": true, "Tier": tier}
	if key = cmp.Or(w.config.KMSKeyID, key); key != "" && w.config.kind() == secureString {
		in["KeyId"] = key // without one, the account's own would take the place of that of the parameter
	}
	held, number, err := w.put(ctx, w.it, in)
	if err == nil && number == 1 { // it was deleted meanwhile, so that this write has created it
		w.begun = true
		err = w.tag(ctx, cloud1.Tags(w.it), nil)
	}
	return held, err
}

// current returns what there is of the parameter besides its value, if it is the version that was found.
func (w *writing) current(ctx context.Context) (parameter, error) {
	for p, err := range w.describe(ctx, w.it.Name) {
		if err != nil {
			return p, err
		}
		if p.Name == w.it.Name && p.version() == w.was.Version {
			return p, nil
		}
	}
	return parameter{}, changed()
}

// tag sets the tags that are not there yet. Those that go make room first.
func (w *writing) tag(ctx context.Context, set map[string]string, unset []string) error {
	if len(unset) > 0 {
		if err := w.untag(ctx, w.it.Name, unset); err != nil {
			return why(err)
		}
		w.begun = true
	}
	if len(set) > 0 {
		if err := w.dest.tag(ctx, w.it.Name, set); err != nil {
			return why(err)
		}
		w.begun = true
	}
	return nil
}

// why is the error of a tag that could not be changed.
func why(err error) error {
	if errors.Is(err, notFoundByTags) {
		return changed()
	}
	return err
}

// Delete implements destination.Destination. The service has no call that deletes only what was found, so it is looked at once more.
func (d *dest) Delete(ctx context.Context, was destination.Found) error {
	if was.State == destination.Absent {
		return nil
	}
	if was.ID == "" {
		return destination.InternalError("a deletion of something without a name")
	}
	is, err := d.read(ctx, was.ID, false)
	switch {
	case err != nil:
		return err
	case is.State == destination.Absent:
		return nil
	case is.Version != was.Version || is.OwnerTag != was.OwnerTag:
		return changed()
	}
	if err = d.remove(ctx, was.ID); errors.Is(err, notFound) {
		return nil
	}
	return err
}

func (d *dest) tag(ctx context.Context, name string, set map[string]string) error {
	_, err := cloud1.Call[struct{}](ctx, d.Session, "AddTagsToResource", true, object{"ResourceType": "Parameter", "ResourceId": name, "Tags": listOf(set)})
	return err
}

func (d *dest) untag(ctx context.Context, name string, keys []string) error {
	_, err := cloud1.Call[struct{}](ctx, d.Session, "RemoveTagsFromResource", true, object{"ResourceType": "Parameter", "ResourceId": name, "TagKeys": keys})
	return err
}

func (d *dest) remove(ctx context.Context, name string) error {
	_, err := cloud1.Call[struct{}](ctx, d.Session, "DeleteParameter", true, object{"Name": name})
	return err
}
