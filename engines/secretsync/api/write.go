package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/secretsync/apply"
	"github.com/coffer-project/coffer/engines/secretsync/connection"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/githubapp"
	"github.com/coffer-project/coffer/engines/secretsync/state"
	"github.com/coffer-project/coffer/storage"
)

// settingsIn are the fields that all types have.
type settingsIn struct {
	Name          string             `json:"name" max:"128" help:"Name of the destination."`
	Granularity   string             `json:"granularity" help:"secret-path: one value for a secret; secret-key: one for each of its keys. It counts for secrets that are associated from now on."`
	Template      string             `json:"secret_name_template" max:"4096" help:"Template of the names there. It counts for secrets that are associated from now on."`
	CustomTags    engines.StringMap  `json:"custom_tags" max:"50" help:"Tags that every secret gets there."`
	TagsToRemove  engines.StringList `json:"tags_to_remove" max:"50" help:"Names of custom tags to drop."`
	Removals      int                `json:"removal_attempts" help:"Let go of what was synced after this many failed attempts to remove it, 100 at most: it stays at the destination, and left_behind lists it. 0: never."`
	DisableStrict bool               `json:"disable_strict_networking" help:"Let connections go to private addresses and any port."`
	IPv4          engines.StringList `json:"allowed_ipv4_addresses" form:"network" max:"100" help:"Networks that connections may go to, private ones too, such as 10.1.0.0/16. Without any: all public ones."`
	IPv6          engines.StringList `json:"allowed_ipv6_addresses" form:"network" max:"100" help:"Likewise."`
	Ports         engines.StringList `json:"allowed_ports" max:"100" help:"Ports that connections may go to; 80 and 443 without any."`
}

// maxRemovalAttempts bounds removal_attempts: more than a month of failures.
const maxRemovalAttempts = 100

// maxTags bounds custom tags whatever a type takes.
const maxTags = 50

// writeDestination creates a destination, or replaces all of one but credentials that did not come, or patches it: changes what came with
// the request. named is how the request named its type.
func (s *API) writeDestination(ctx context.Context, req *engines.Request, kind destination.Type, named string, in reflect.Value, patch bool) (*engines.Response, error) {
	var set settingsIn
	for i := range reflect.TypeFor[settingsIn]().NumField() {
		reflect.ValueOf(&set).Elem().Field(i).Set(in.Field(i))
	}
	if problem := checkDestinationName(set.Name); problem != "" {
		return nil, engines.Invalid("%s", problem)
	}
	ns, name := req.Mount.NamespaceID, set.Name
	var d state.Destination
	var warnings []string
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		d, warnings = state.Destination{}, nil
		if _, err := state.GetDestination(ctx, tx, state.DestinationKey(ns, kind.Name, name), &d); err != nil {
			return err
		}
		created := d.ID == ""
		switch {
		case created && patch:
			return engines.NotFound("")
		case created:
			d = state.Destination{
				ID: state.Hash(rand.Text()), NS: ns, Type: kind.Name, Name: name, FingerprintKey: []byte(rand.Text() + rand.Text()), CreatedAt: time.Now().UTC(),
			}
			if named != kind.Name {
				d.CreatedAs = named
			}
		case !d.PurgeAt.IsZero() && !patch: // the caller would read that the destination exists
			return engines.Invalid("the destination is being purged; credentials that are in the way of that can be changed with PATCH")
		}
		if err := failIfAssociated(ctx, tx, &d); err != nil {
			return err
		}
		if err := s.mergeRequest(ctx, tx, &d, kind, req, &set, in, patch); err != nil {
			return err
		}
		switch problem := s.openProblem(&d); {
		case problem == "":
		case kind.Name == optionalFieldsType:
			warnings = []string{problem}
		default:
			return engines.Invalid("%s", problem)
		}
		d.UpdatedAt = time.Now().UTC()
		if err := state.EnsureInstallation(ctx, tx); err != nil {
			return err
		}
		return engines.PutRecord(tx, d.Key(), &d)
	})
	if err != nil {
		return nil, err
	}
	d.NamedType = named
	data, err := s.DescribeDestination(ctx, req, &d)
	return &engines.Response{Data: data, Warnings: warnings}, err
}

// optionalFieldsType is the type whose fields may all be left out: the environment may have them later.
const optionalFieldsType = "cloud1-sm"

// openProblem returns why a destination cannot be opened as it is, "" if it can: what its type requires is neither in its fields nor in
// the environment of the server. No call is made.
func (s *API) openProblem(d *state.Destination) string {
	dest, err := s.Pool.Open(d)
	if err == nil {
		dest.Close() //nolint:errcheck // it was never used
		return ""
	}
	if o := state.OutcomeOf(err); o.Status == state.ClientError {
		return o.Cause
	}
	return "" // the server's own trouble
}

// checkDestinationName returns why a name cannot be one of a destination.
func checkDestinationName(name string) string {
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("-_.", c)) {
			return `field "name": may hold letters, digits, "-", "_" and "." only`
		}
	}
	return ""
}

// mergeRequest puts what a request says into a record, and checks the whole of it. All problems are listed.
func (s *API) mergeRequest(ctx context.Context, tx *storage.Txn, d *state.Destination, kind destination.Type, req *engines.Request, set *settingsIn, in reflect.Value, patch bool) error {
	c := kind.New()
	if err := state.DecodeConfig(d.Config, c); err != nil {
		return err
	}
	before := identityOf(c)
	mergeConfig(c, in, req, patch)
	problems := append(c.Check(), checkMasks(c, in, req)...)
	if problem := s.Pool.RejectEnvironment(d.NS, c); problem != "" {
		problems = append(problems, problem)
	}
	if !d.UpdatedAt.IsZero() {
		more, err := s.checkMove(ctx, d, before, c, func(name string) bool {
			return req.Given(name) && fieldNamed(in, name).String() != destination.Mask
		})
		if err != nil {
			return err
		}
		problems = append(problems, more...)
		if c.Location() != before.location { // an association that is created now was meant for the former location
			d.ID = state.Hash(rand.Text())
		}
	}
	mergeSettings(&d.Settings, req, set, kind.Rules, patch)
	problems = append(problems, checkSettings(&d.Settings, kind.Rules)...)
	if len(problems) > 0 {
		return engines.Invalid("%s", strings.Join(problems, "; "))
	}
	if app := connection.AppOf(c); app != "" {
		if err := githubapp.Hold(ctx, tx, d.NS, app); err != nil {
			return err
		}
	}
	var err error
	d.Config, err = state.EncodeConfig(c)
	return err
}

// checkMasks returns what speaks against masks that came with a request and stand for nothing: without a word, the credentials of
// the server's environment would be used.
func checkMasks(c destination.Config, in reflect.Value, req *engines.Request) (problems []string) {
	state.EachField(c, func(name string, v reflect.Value) {
		if v.Type() == state.SensitiveType && v.String() == "" && req.Given(name) && fieldNamed(in, name).String() == destination.Mask {
			problems = append(problems, fmt.Sprintf("field %q: is what reads answer in place of a credential, and none is stored: give the credential itself, or leave it out", name))
		}
	})
	return problems
}

// endpointIdentity is where a configuration leads, and with what.
type endpointIdentity struct {
	location, owner, ambiguous string
	fixed, why                 string            // see destination.Fixed
	credentials                map[string]string // fields that are set, by name
}

func identityOf(c destination.Config) endpointIdentity {
	at := endpointIdentity{location: c.Location(), credentials: connection.Credentials(c)}
	if o, ok := c.(destination.Owned); ok {
		at.owner = o.Owner()
	}
	if a, ok := c.(destination.Ambiguous); ok {
		at.ambiguous = a.Ambiguous()
	}
	if f, ok := c.(destination.Fixed); ok {
		at.fixed, at.why = f.Fixed()
	}
	return at
}

// checkMove returns the problems of changing a destination to a configuration: a caller who does not know the stored credentials must
// not use them elsewhere, and associations do not move to another location. given reports whether a field came with the request, and
// not as the mask.
func (s *API) checkMove(ctx context.Context, d *state.Destination, before endpointIdentity, c destination.Config, given func(field string) bool) (problems []string, err error) {
	now := identityOf(c)
	if now.owner != before.owner {
		for _, name := range slices.Sorted(maps.Keys(now.credentials)) {
			if before.credentials[name] == now.credentials[name] && !given(name) {
				problems = append(problems, fmt.Sprintf("field %q: give it, too: the location would be another owner's, and what is stored is not used for that", name))
			}
		}
	}
	if h, ok := c.(interface{ Hooks() []string }); ok { // fields that give no access to the location
		for _, name := range h.Hooks() {
			delete(before.credentials, name)
			delete(now.credentials, name)
		}
	}
	exchanged := before.ambiguous != "" && !maps.Equal(before.credentials, now.credentials)
	if now.location == before.location && now.fixed == before.fixed && !exchanged {
		return problems, nil
	}
	has, err := s.HasAssociations(ctx, d)
	switch {
	case err != nil || !has:
	case now.location != before.location:
		problems = append(problems, "the destination has associations, and would be another place: associate the secrets with another destination instead")
	case now.fixed != before.fixed:
		problems = append(problems, "the destination has associations, and existing secrets would stay as they are, because "+now.why+": associate the secrets with another destination instead")
	default:
		problems = append(problems, "the destination has associations, and could be another place with these credentials, because "+before.ambiguous)
	}
	return problems, err
}

// mergeSettings copies all fields of a request, with patch those that came with it.
func mergeSettings(o *state.Settings, req *engines.Request, in *settingsIn, r destination.Rules, patch bool) {
	came := func(field string) bool { return !patch || req.Given(field) }
	if came("granularity") {
		o.Granularity = in.Granularity
	}
	if came("secret_name_template") {
		o.Template = in.Template
	}
	for _, granularity := range []string{destination.SecretPath, destination.SecretKey} {
		a := state.Association{Granularity: granularity}
		if o.Template == a.Plan(r).TemplateText() { // clients send back what they read, also with another granularity
			o.Template = ""
		}
	}
	if came("custom_tags") {
		o.CustomTags = in.CustomTags
	}
	if len(in.TagsToRemove) > 0 {
		o.CustomTags = maps.Clone(o.CustomTags)
		for _, tag := range in.TagsToRemove {
			delete(o.CustomTags, tag)
		}
	}
	if came("removal_attempts") {
		o.RemovalAttempts = in.Removals
	}
	if came("disable_strict_networking") {
		o.DisableStrict = in.DisableStrict
	}
	if came("allowed_ipv4_addresses") {
		o.IPv4 = in.IPv4
	}
	if came("allowed_ipv6_addresses") {
		o.IPv6 = in.IPv6
	}
	if came("allowed_ports") {
		o.Ports = in.Ports
	}
}

// checkSettings returns everything that is wrong with the settings.
func checkSettings(o *state.Settings, r destination.Rules) []string {
	a := state.Association{Granularity: o.Granularity, Template: o.Template}
	problems := a.Plan(r).Check()
	switch most := min(r.MaxTags, maxTags); {
	case len(o.CustomTags) > 0 && most == 0:
		problems = append(problems, `field "custom_tags": destinations of this type have no tags`)
	case len(o.CustomTags) > most:
		problems = append(problems, fmt.Sprintf(`field "custom_tags": has %d tags, there is room for %d`, len(o.CustomTags), most))
	default:
		for _, key := range slices.Sorted(maps.Keys(o.CustomTags)) {
			if problem := r.CheckTag(key, o.CustomTags[key]); problem != "" {
				problems = append(problems, fmt.Sprintf(`field "custom_tags": %s`, problem))
			}
		}
	}
	if o.RemovalAttempts < 0 || o.RemovalAttempts > maxRemovalAttempts {
		problems = append(problems, fmt.Sprintf(`field "removal_attempts": must be between 0 and %d`, maxRemovalAttempts))
	}
	if _, err := connection.NewGuard(&o.Network, false); err != nil {
		problems = append(problems, err.Error())
	}
	return problems
}

// updateDestination changes a destination that is there.
func (s *API) updateDestination(ctx context.Context, req *engines.Request, in *destinationIn, change func(*state.Destination) error) (*state.Destination, error) {
	var d *state.Destination
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) (err error) {
		if d, err = s.FindDestination(ctx, tx, req.Mount.NamespaceID, in.Type, in.Name); err != nil {
			return err
		}
		if err := change(d); err != nil {
			return err
		}
		return engines.PutRecord(tx, d.Key(), d)
	})
	return d, err
}

// failIfAssociated makes a transaction fail if an association is made before it is committed.
func failIfAssociated(ctx context.Context, tx *storage.Txn, d *state.Destination) error {
	_, err := engines.GetRecord(ctx, tx, state.NewestKey(d.NS, d.ID), new(state.Newest))
	return err
}

type deleteIn struct {
	Type  string `json:"type" max:"64" help:"Type of the destination."`
	Name  string `json:"name" max:"128" help:"Name of the destination."`
	Purge bool   `json:"purge" help:"Remove all its associations, with what was synced, first."`
	Force bool   `json:"force_delete" help:"Delete it at once and leave what was synced where it is; left_behind of the response lists that."`
}

func (s *API) deleteDestination(ctx context.Context, req *engines.Request, in *deleteIn) (*engines.Response, error) {
	at := &destinationIn{in.Type, in.Name}
	d, err := s.FindDestination(ctx, s.Host.Store(), req.Mount.NamespaceID, in.Type, in.Name)
	var e *engines.Error
	if errors.As(err, &e) && e.Kind == engines.KindNotFound {
		return nil, nil // as clients of the Vault-compatible API expect
	}
	if err != nil {
		return nil, err
	}
	if err := s.checkAllVisible(ctx, req, d); err != nil {
		return nil, err
	}
	if in.Force {
		left, unreadable, err := s.ForceDelete(ctx, d, engines.PrincipalOf(req.Caller))
		if err != nil {
			return nil, err
		}
		return respondDeleted(left, unreadable), nil
	}
	if !in.Purge {
		left, err := s.deleteUnused(ctx, req, at)
		if err != nil {
			return nil, err
		}
		return respondDeleted(left, 0), nil
	}
	d, err = s.updateDestination(ctx, req, at, func(d *state.Destination) error {
		if d.PurgeAt.IsZero() {
			d.PurgeAt = time.Now().UTC()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := s.Purge(ctx, d); err != nil {
		return nil, err
	}
	data, err := s.DescribeDestination(ctx, req, d)
	return &engines.Response{Data: data, Status: 202}, err
}

// respondDeleted lists what a destination that was deleted has left behind. It is nil if that is nothing.
func respondDeleted(left *state.Orphans, unreadable int) *engines.Response {
	if left.Total+unreadable == 0 {
		return nil
	}
	resp := &engines.Response{Data: map[string]any{"left_behind": left.Describe()}}
	if left.Total > 0 {
		resp.Warnings = append(resp.Warnings, fmt.Sprintf("names that were synced (%d) stay at the destination, and have no owner any more: left_behind lists them", left.Total))
	}
	if unreadable > 0 {
		resp.Warnings = append(resp.Warnings, fmt.Sprintf("what %d more secrets have at the destination is not known: their records cannot be read", unreadable))
	}
	return resp
}

// checkAllVisible denies a caller who does not see all associations of a destination: those would be deleted, too.
func (s *API) checkAllVisible(ctx context.Context, req *engines.Request, d *state.Destination) error {
	hidden := false
	left, err := apply.Survey(ctx, s.Syncer, state.Area(d.NS, "a/"+d.ID+"/"), func(_ storage.Key, a *state.Association) bool {
		hidden = !req.Caller.Sees(a.MountUUID)
		return !hidden
	})
	if hidden || left > 0 && req.Caller.Mounts != nil {
		denied := engines.Denied(errors.New("the destination has associations of mounts that the secondary does not have"))
		denied.Detail = "permission denied: the destination has associations that are not there at this cluster: delete it at the primary"
		return denied
	}
	return err
}

// deleteUnused deletes a destination that has no associations, and returns the names that it was let go of before.
func (s *API) deleteUnused(ctx context.Context, req *engines.Request, at *destinationIn) (*state.Orphans, error) {
	left := new(state.Orphans)
	_, err := storage.Update(ctx, s.Host.Store(), func(tx *storage.Txn) error {
		d, err := s.FindDestination(ctx, tx, req.Mount.NamespaceID, at.Type, at.Name)
		if err != nil {
			return err
		}
		if err := failIfAssociated(ctx, tx, d); err != nil {
			return err
		}
		n, removing, err := s.CountAssociations(ctx, d)
		switch {
		case err != nil:
			return err
		case removing > 0 && n == removing:
			return engines.Invalid("associations of the destination (%d) are still being removed: try again when they are, or see why not with a read of its associations. If the destination cannot be used any more, set removal_attempts of it, or delete it with force_delete=true: both leave what was synced there", n)
		case n > 0:
			return engines.Invalid("the destination has associations (%d): remove them first, or delete it with purge=true, which removes what was synced, or with force_delete=true, which leaves it", n)
		}
		*left = state.Orphans{}
		if _, err := engines.GetRecord(ctx, tx, state.OrphansKey(d.NS, d.Type, d.Name), left); err != nil && !s.Unreadable(err) {
			return err
		}
		for _, key := range d.Keys() {
			tx.Delete(key)
		}
		return nil
	})
	return left, err
}

// mergeConfig copies what a request says: in has the decoded fields, with defaults for those that did not come. The mask keeps what there
// is, and a null goes back to the default. What did not come keeps what there is if it is a credential, and with patch.
func mergeConfig(c destination.Config, in reflect.Value, req *engines.Request, patch bool) {
	// Another spelling of a field replaces it.
	if other, ok := c.(interface{ Synonyms() map[string]string }); ok {
		for spelling, field := range other.Synonyms() {
			if req.Given(spelling) && !req.Given(field) {
				fieldNamed(reflect.ValueOf(c).Elem(), field).SetZero()
			}
		}
	}
	state.EachField(c, func(name string, v reflect.Value) {
		from := fieldNamed(in, name)
		switch {
		case req.Null(name):
			v.Set(from) // the default
		case !req.Given(name) && (patch || v.Type() == state.SensitiveType):
		case v.Type() == state.SensitiveType && from.String() == destination.Mask:
		default:
			v.Set(from)
		}
	})
}

func fieldNamed(in reflect.Value, name string) reflect.Value {
	for i := range in.NumField() {
		if tag, _, _ := strings.Cut(in.Type().Field(i).Tag.Get("json"), ","); tag == name {
			return in.Field(i)
		}
	}
	panic("secretsync: no input field " + name)
}

// inputType is the input of a route that writes a destination: the options, which all types have, and its configuration.
func inputType(options reflect.Type, c destination.Config) reflect.Type {
	var fields []reflect.StructField
	for _, t := range []reflect.Type{options, reflect.TypeOf(c).Elem()} {
		for _, f := range state.Fields(t) {
			f.Offset, f.Index = 0, nil
			fields = append(fields, f)
		}
	}
	return reflect.StructOf(fields)
}
