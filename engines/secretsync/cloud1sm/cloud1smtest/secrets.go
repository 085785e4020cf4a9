package cloud1smtest

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1/cloud1test"
)

const (
	current  = "AWSCURRENT"
	previous = "AWSPREVIOUS"

	maxValueBytes = 65536
	maxTags       = 50
	maxLabels     = 20
	maxVersions   = 100
	young         = 24 * time.Hour // versions that are kept though they are too many
)

// secret is one, perhaps scheduled for deletion.
type secret struct {
	arn      string
	name     string
	number   int // in order of creation
	kms      string
	owner    string // the service that manages it, "" for none
	tags     map[string]string
	versions map[string]*version
	replicas map[string]string // keys by region
	lost     map[string]string // regions whose replica failed, with the reason
	created  time.Time
	changed  time.Time
	deleteAt time.Time // zero: it is not scheduled for deletion
	deleted  time.Time
}

type version struct {
	text    *string
	binary  []byte
	labels  []string
	created time.Time
}

// request is one, while it is carried out.
type request struct {
	*cloud1test.Request
	s *Server
}

type object = map[string]any

var actions = map[string]func(*request) (any, *cloud1test.Refusal){
	"CreateSecret":             (*request).create,
	"DescribeSecret":           (*request).describe,
	"GetSecretValue":           (*request).getValue,
	"PutSecretValue":           (*request).putValue,
	"UpdateSecretVersionStage": (*request).updateStage,
	"TagResource":              (*request).tag,
	"UntagResource":            (*request).untag,
	"DeleteSecret":             (*request).remove,
	"RestoreSecret":            (*request).restore,
	"UpdateSecret":             (*request).update,
	"ReplicateSecretToRegions": (*request).replicate,

	"RemoveRegionsFromReplication": (*request).unreplicate,
	"ListSecrets":                  (*request).list,
}

// purge removes what has been scheduled for long enough.
func (s *Server) purge(now time.Time) {
	maps.DeleteFunc(s.secrets, func(_ string, k *secret) bool { return !k.deleteAt.IsZero() && !now.Before(k.deleteAt) })
}

func (s *Server) named(name string) *secret {
	for _, k := range s.secrets {
		if k.name == name {
			return k
		}
	}
	return nil
}

// find takes a name, an ARN, and an ARN without its end, which is trouble where a name looks like it had one.
func (r *request) find() (*secret, *cloud1test.Refusal) {
	id := r.Text("SecretId")
	if !strings.HasPrefix(id, "arn:") {
		if k := r.s.named(id); k != nil {
			return k, nil
		}
	} else {
		if k := r.s.secrets[id]; k != nil {
			return k, nil
		}
		for arn, k := range r.s.secrets {
			if arn[:len(arn)-7] == id {
				return k, nil
			}
		}
	}
	return nil, cloud1test.Reject("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
}

// live is find for what must not be scheduled for deletion.
func (r *request) live() (*secret, *cloud1test.Refusal) {
	k, rejected := r.find()
	if rejected == nil && !k.deleteAt.IsZero() {
		return nil, cloud1test.Reject("InvalidRequestException", "You can't perform this operation on the secret because it was marked for deletion.")
	}
	return k, rejected
}

var (
	legalName = regexp.MustCompile(`\A[A-Za-z0-9/_+=.@-]{1,512}\z`)
)

// content returns the value of a request.
func (r *request) content() (*version, *cloud1test.Refusal) {
	text, binary := r.Has("SecretString"), r.Has("SecretBinary")
	v := &version{created: r.Now}
	switch {
	case text && binary:
		return nil, cloud1test.Reject("InvalidParameterException", "You can't specify both a binary secret value and a string secret value in the same secret.")
	case text:
		value := r.Text("SecretString")
		v.text = &value
	case binary:
		v.binary, _ = base64.StdEncoding.DecodeString(r.Text("SecretBinary"))
	default:
		return nil, nil
	}
	if !r.Has("ClientRequestToken") {
		return nil, cloud1test.Reject("InvalidRequestException", "You must provide a ClientRequestToken value. We recommend a UUID-type value.")
	}
	if len(v.bytes()) > maxValueBytes {
		return nil, cloud1test.Reject("InvalidParameterException", "The secret value is longer than %d bytes.", maxValueBytes)
	}
	return v, nil
}

func (v *version) bytes() []byte {
	if v.text != nil {
		return []byte(*v.text)
	}
	return v.binary
}

func (v *version) same(o *version) bool {
	return (v.text == nil) == (o.text == nil) && bytes.Equal(v.bytes(), o.bytes())
}

func (r *request) create() (any, *cloud1test.Refusal) {
	name := r.Text("Name")
	if !legalName.MatchString(name) {
		return nil, cloud1test.Reject("InvalidParameterException", "Invalid name. Must be a valid name containing alphanumeric characters, or any of the following: -/_+=.@!")
	}
	v, rejected := r.content()
	if rejected != nil {
		return nil, rejected
	}
	tags, rejected := r.Tags("InvalidParameterException")
	if rejected != nil {
		return nil, rejected
	}
	token := r.Text("ClientRequestToken")
	k := r.s.named(name)
	switch {
	case r.s.dying[name] || k != nil && !k.deleteAt.IsZero():
		return nil, cloud1test.Reject("InvalidRequestException", "You can't create this secret because a secret with this name is already scheduled for deletion.")
	case k != nil && v != nil && k.versions[token] != nil && k.versions[token].same(v):
		return object{"ARN": k.arn, "Name": name, "VersionId": token}, nil
	case k != nil:
		return nil, cloud1test.Reject("ResourceExistsException", "The operation failed because the secret %s already exists.", name)
	case len(tags) > maxTags:
		return nil, cloud1test.Reject("InvalidParameterException", "A secret has at most %d tags.", maxTags)
	case strings.Contains(r.Text("KmsKeyId"), "disabled"):
		return nil, cloud1test.Reject("EncryptionFailure", "Secrets Manager can't encrypt the protected secret text using the provided KMS key.")
	}
	k = r.s.add(name, tags, r.Now)
	k.kms = r.Text("KmsKeyId")
	out := object{"ARN": k.arn, "Name": name}
	if rejected := r.addReplicas(k); rejected != nil {
		delete(r.s.secrets, k.arn)
		return nil, rejected
	}
	if len(k.replicas) > 0 {
		out["ReplicationStatus"] = k.replication()
	}
	if v != nil {
		v.labels = []string{current}
		k.versions[token] = v
		out["VersionId"] = token
	}
	return out, nil
}

// add makes a secret without a value. Its ARN ends in six characters that no other has had.
func (s *Server) add(name string, tags map[string]string, now time.Time) *secret {
	s.made++
	arn := fmt.Sprintf("arn:aws:secretsmanager:%s:%s:secret:%s-%s", s.Region, s.Account(), name, rand.Text()[:6])
	k := &secret{arn: arn, name: name, number: s.made, tags: tags, versions: map[string]*version{}, replicas: map[string]string{}, lost: map[string]string{}, created: now, changed: now}
	s.secrets[arn] = k
	return k
}

func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

func (k *secret) labels() object {
	all := object{}
	for id, v := range k.versions {
		if len(v.labels) > 0 {
			all[id] = slices.Clone(v.labels) // the response is written without the lock
		}
	}
	return all
}

// details are what describing and listing have in common, but for what they call the labels.
func (k *secret) details(labels string) object {
	out := object{"ARN": k.arn, "Name": k.name, "CreatedDate": seconds(k.created), "LastChangedDate": seconds(k.changed)}
	if stages := k.labels(); len(stages) > 0 {
		out[labels] = stages
	}
	if k.kms != "" {
		out["KmsKeyId"] = k.kms
	}
	if k.owner != "" {
		out["OwningService"] = k.owner
	}
	if !k.deleteAt.IsZero() {
		out["DeletedDate"] = seconds(k.deleted)
	}
	if len(k.tags) > 0 {
		var list []object
		for _, key := range slices.Sorted(maps.Keys(k.tags)) {
			list = append(list, object{"Key": key, "Value": k.tags[key]})
		}
		out["Tags"] = list
	}
	return out
}

func (r *request) describe() (any, *cloud1test.Refusal) {
	k, rejected := r.find()
	if rejected != nil {
		return nil, rejected
	}
	out := k.details("VersionIdsToStages")
	if len(k.replicas) > 0 {
		out["PrimaryRegion"], out["ReplicationStatus"] = r.s.Region, k.replication()
	}
	return out, nil
}

func (k *secret) holder(label string) string {
	for id, v := range k.versions {
		if slices.Contains(v.labels, label) {
			return id
		}
	}
	return ""
}

func (r *request) getValue() (any, *cloud1test.Refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	id, label := r.Text("VersionId"), r.Text("VersionStage")
	if label == "" && id == "" {
		label = current
	}
	if id == "" {
		id = k.holder(label)
	}
	v := k.versions[id]
	if v == nil || label != "" && !slices.Contains(v.labels, label) {
		return nil, cloud1test.Reject("ResourceNotFoundException", "Secrets Manager can't find the specified secret value for staging label or version.")
	}
	out := object{"ARN": k.arn, "Name": k.name, "VersionId": id, "CreatedDate": seconds(v.created)}
	if len(v.labels) > 0 {
		out["VersionStages"] = slices.Clone(v.labels)
	}
	if v.text != nil {
		out["SecretString"] = *v.text
	} else {
		out["SecretBinary"] = base64.StdEncoding.EncodeToString(v.binary)
	}
	return out, nil
}

func (r *request) putValue() (any, *cloud1test.Refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	v, rejected := r.content()
	switch {
	case rejected != nil:
		return nil, rejected
	case v == nil:
		return nil, cloud1test.Reject("InvalidParameterException", "You must provide either SecretString or SecretBinary.")
	case k.owner != "":
		return nil, cloud1test.Reject("InvalidRequestException", "You can't perform this operation because the secret is managed by %s.", k.owner)
	}
	token, labels := r.Text("ClientRequestToken"), r.Texts("VersionStages")
	if labels == nil || k.holder(current) == "" {
		labels = append(labels, current)
	}
	switch old := k.versions[token]; {
	case old != nil && !old.same(v):
		return nil, cloud1test.Reject("ResourceExistsException", "You can't modify an existing version, you can only create a new version.")
	case old == nil:
		if rejected := k.put(token, v, labels, r.Now); rejected != nil {
			return nil, rejected
		}
	}
	out := object{"ARN": k.arn, "Name": k.name, "VersionId": token}
	if labels := k.versions[token].labels; len(labels) > 0 {
		out["VersionStages"] = slices.Clone(labels)
	}
	return out, nil
}

// put adds a version, unless there are too many.
func (k *secret) put(id string, v *version, labels []string, now time.Time) *cloud1test.Refusal {
	if len(k.versions) >= maxVersions {
		maps.DeleteFunc(k.versions, func(_ string, v *version) bool { return len(v.labels) == 0 && now.Sub(v.created) > young })
	}
	all := map[string]bool{}
	for _, v := range k.versions {
		for _, label := range v.labels {
			all[label] = true
		}
	}
	for _, label := range labels {
		all[label] = true
	}
	if len(k.versions) >= maxVersions || len(all) > maxLabels {
		return cloud1test.Reject("LimitExceededException", "You've exceeded the quota of versions or of staging labels.")
	}
	k.versions[id] = v
	for _, label := range labels {
		k.move(label, id)
	}
	k.changed = now
	return nil
}

// move attaches a label to a version and takes it from all others.
func (k *secret) move(label, to string) {
	from := k.holder(label)
	if from == to {
		return
	}
	if from != "" {
		k.drop(label, from)
	}
	k.versions[to].labels = append(k.versions[to].labels, label)
	if label == current && from != "" {
		k.move(previous, from)
	}
}

func (k *secret) drop(label, from string) {
	v := k.versions[from]
	v.labels = slices.DeleteFunc(v.labels, func(l string) bool { return l == label })
}

func (r *request) updateStage() (any, *cloud1test.Refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	label, to, from := r.Text("VersionStage"), r.Text("MoveToVersionId"), r.Text("RemoveFromVersionId")
	holder := k.holder(label)
	switch {
	case to != "" && k.versions[to] == nil:
		return nil, cloud1test.Reject("ResourceNotFoundException", "Secrets Manager can't find the specified secret version.")
	case from != "" && from != holder:
		return nil, cloud1test.Reject("InvalidParameterException", "The staging label %s isn't attached to version %s.", label, from)
	case from == "" && holder != "" && holder != to:
		return nil, cloud1test.Reject("InvalidParameterException", "The parameter RemoveFromVersionId can't be empty. Staging label %s is currently attached to version %s, "+
			"so you must explicitly reference that version in RemoveFromVersionId.", label, holder)
	case to == "" && label == current:
		return nil, cloud1test.Reject("InvalidParameterException", "You can't remove the staging label %s.", label)
	case to == "":
		k.drop(label, from)
	default:
		k.move(label, to)
	}
	k.changed = r.Now
	return object{"ARN": k.arn, "Name": k.name}, nil
}

func (r *request) tag() (any, *cloud1test.Refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	tags, rejected := r.Tags("InvalidParameterException")
	if rejected != nil {
		return nil, rejected
	}
	all := maps.Clone(k.tags)
	maps.Copy(all, tags)
	if len(all) > maxTags {
		return nil, cloud1test.Reject("InvalidParameterException", "A secret has at most %d tags.", maxTags)
	}
	k.tags, k.changed = all, r.Now
	return nil, nil
}

func (r *request) untag() (any, *cloud1test.Refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	for _, key := range r.Texts("TagKeys") {
		delete(k.tags, key)
	}
	k.changed = r.Now
	return nil, nil
}

func (r *request) remove() (any, *cloud1test.Refusal) {
	force, days := r.Yes("ForceDeleteWithoutRecovery"), r.Number("RecoveryWindowInDays")
	k, rejected := r.find()
	switch {
	case force && r.Has("RecoveryWindowInDays"):
		return nil, cloud1test.Reject("InvalidParameterException", "You can't use ForceDeleteWithoutRecovery in conjunction with RecoveryWindowInDays.")
	case r.Has("RecoveryWindowInDays") && (days < 7 || days > 30):
		return nil, cloud1test.Reject("InvalidParameterException", "The RecoveryWindowInDays value must be between 7 and 30 days (inclusive).")
	case rejected != nil:
		return nil, rejected
	case k.owner != "":
		return nil, cloud1test.Reject("InvalidRequestException", "You can't perform this operation because the secret is managed by %s.", k.owner)
	case len(k.replicas) > 0:
		return nil, cloud1test.Reject("InvalidRequestException", "You can't delete secret %s that still has replica regions [%s].", k.name, strings.Join(slices.Sorted(maps.Keys(k.replicas)), ", "))
	case force:
		delete(r.s.secrets, k.arn)
		r.s.dying[k.name] = r.s.slow
		return object{"ARN": k.arn, "Name": k.name, "DeletionDate": seconds(r.Now)}, nil
	case !k.deleteAt.IsZero():
		return nil, cloud1test.Reject("InvalidRequestException", "You can't perform this operation on the secret because it was already scheduled for deletion.")
	case days == 0:
		days = 30
	}
	k.deleted, k.deleteAt = r.Now, r.Now.AddDate(0, 0, days)
	return object{"ARN": k.arn, "Name": k.name, "DeletionDate": seconds(k.deleteAt)}, nil
}

func (r *request) restore() (any, *cloud1test.Refusal) {
	k, rejected := r.find()
	if rejected != nil {
		return nil, rejected
	}
	k.deleteAt, k.deleted = time.Time{}, time.Time{}
	return object{"ARN": k.arn, "Name": k.name}, nil
}

// update changes the key only: Coffer writes values in another way.
func (r *request) update() (any, *cloud1test.Refusal) {
	k, rejected := r.live()
	switch {
	case rejected != nil:
		return nil, rejected
	case r.Has("SecretString") || r.Has("SecretBinary") || r.Has("Description"):
		r.s.testing.Error("cloud1smtest: UpdateSecret is there for the key only")
	case strings.Contains(r.Text("KmsKeyId"), "disabled"):
		return nil, cloud1test.Reject("EncryptionFailure", "Secrets Manager can't encrypt the protected secret text using the provided KMS key.")
	case r.Has("KmsKeyId"):
		k.kms, k.changed = r.Text("KmsKeyId"), r.Now
	}
	return object{"ARN": k.arn, "Name": k.name}, nil
}

// occupied is a region in which another secret has every name, so that replicas fail there.
const occupied = "us-gov-west-1"

func (r *request) addReplicas(k *secret) *cloud1test.Refusal {
	list, _ := r.In["AddReplicaRegions"].([]any)
	for _, entry := range list {
		to, _ := entry.(object)
		region, _ := to["Region"].(string)
		key, _ := to["KmsKeyId"].(string)
		_, is := k.replicas[region]
		switch {
		case region == r.s.Region:
			return cloud1test.Reject("InvalidParameterException", "Invalid replica region: it is the region of the secret.")
		case is && k.lost[region] == "":
			return cloud1test.Reject("InvalidParameterException", "The secret is already replicated to %s.", region)
		}
		k.replicas[region] = key
		delete(k.lost, region)
		if region == occupied && !r.Yes("ForceOverwriteReplicaSecret") {
			k.lost[region] = "Replication failed: Secret name simple already exists in region " + region + "."
		}
	}
	return nil
}

func (k *secret) replication() (list []object) {
	for _, region := range slices.Sorted(maps.Keys(k.replicas)) {
		is := object{"Region": region, "Status": "InSync"}
		if k.replicas[region] != "" {
			is["KmsKeyId"] = k.replicas[region]
		}
		if k.lost[region] != "" {
			is["Status"], is["StatusMessage"] = "Failed", k.lost[region]
		}
		list = append(list, is)
	}
	return list
}

func (r *request) replicate() (any, *cloud1test.Refusal) {
	k, rejected := r.live()
	if rejected == nil {
		rejected = r.addReplicas(k)
	}
	if rejected != nil {
		return nil, rejected
	}
	k.changed = r.Now
	return object{"ARN": k.arn, "ReplicationStatus": k.replication()}, nil
}

func (r *request) unreplicate() (any, *cloud1test.Refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	for _, region := range r.Texts("RemoveReplicaRegions") {
		if _, ok := k.replicas[region]; !ok {
			return nil, cloud1test.Reject("InvalidParameterException", "The secret has no replica in %s.", region)
		}
		delete(k.replicas, region)
		delete(k.lost, region)
	}
	k.changed = r.Now
	out := object{"ARN": k.arn}
	if len(k.replicas) > 0 {
		out["ReplicationStatus"] = k.replication()
	}
	return out, nil
}

func (r *request) list() (any, *cloud1test.Refusal) {
	if r.Has("Filters") {
		r.s.testing.Error("cloud1smtest: there are no filters here")
	}
	after := 0
	if r.Has("NextToken") {
		n, err := strconv.Atoi(strings.TrimPrefix(r.Text("NextToken"), "after-"))
		if err != nil {
			return nil, cloud1test.Reject("InvalidNextTokenException", "The NextToken value is invalid.")
		}
		after = n
	}
	size := r.s.pageSize
	if n := r.Number("MaxResults"); n > 0 {
		size = min(size, n)
	}
	page, out := []object{}, object{}
	all := slices.SortedFunc(maps.Values(r.s.secrets), func(a, b *secret) int { return a.number - b.number })
	for _, k := range all {
		if k.number <= after || !k.deleteAt.IsZero() && !r.Yes("IncludePlannedDeletion") {
			continue
		}
		if len(page) == size {
			out["NextToken"] = fmt.Sprintf("after-%d", after)
			break
		}
		page, after = append(page, k.details("SecretVersionsToStages")), k.number
	}
	out["SecretList"] = page
	return out, nil
}
