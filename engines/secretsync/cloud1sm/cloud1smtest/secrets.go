package cloud1smtest

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
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
	s      *Server
	in     map[string]any
	action string
	now    time.Time
}

type object = map[string]any

func (r *request) text(name string) string {
	text, _ := r.in[name].(string)
	return text
}

func (r *request) has(name string) bool { _, ok := r.in[name]; return ok }

func (r *request) yes(name string) bool { yes, _ := r.in[name].(bool); return yes }

func (r *request) number(name string) int {
	n, _ := r.in[name].(json.Number)
	i, _ := strconv.Atoi(n.String())
	return i
}

func (r *request) texts(name string) (list []string) {
	all, _ := r.in[name].([]any)
	for _, v := range all {
		text, _ := v.(string)
		list = append(list, text)
	}
	return list
}

func (r *request) id() string {
	if r.action == "CreateSecret" {
		return r.text("Name")
	}
	return r.text("SecretId")
}

var actions = map[string]func(*request) (any, *refusal){
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
func (r *request) find() (*secret, *refusal) {
	id := r.text("SecretId")
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
	return nil, reject("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
}

// live is find for what must not be scheduled for deletion.
func (r *request) live() (*secret, *refusal) {
	k, rejected := r.find()
	if rejected == nil && !k.deleteAt.IsZero() {
		return nil, reject("InvalidRequestException", "You can't perform this operation on the secret because it was marked for deletion.")
	}
	return k, rejected
}

var (
	legalName = regexp.MustCompile(`\A[A-Za-z0-9/_+=.@-]{1,512}\z`)
	legalTag  = regexp.MustCompile(`\A[\p{L}\p{Z}\p{N}_.:/=+\-@]*\z`)
)

// content returns the value of a request.
func (r *request) content() (*version, *refusal) {
	text, binary := r.has("SecretString"), r.has("SecretBinary")
	v := &version{created: r.now}
	switch {
	case text && binary:
		return nil, reject("InvalidParameterException", "You can't specify both a binary secret value and a string secret value in the same secret.")
	case text:
		value := r.text("SecretString")
		v.text = &value
	case binary:
		v.binary, _ = base64.StdEncoding.DecodeString(r.text("SecretBinary"))
	default:
		return nil, nil
	}
	if !r.has("ClientRequestToken") {
		return nil, reject("InvalidRequestException", "You must provide a ClientRequestToken value. We recommend a UUID-type value.")
	}
	if len(v.bytes()) > maxValueBytes {
		return nil, reject("InvalidParameterException", "The secret value is longer than %d bytes.", maxValueBytes)
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

func (r *request) tags() (map[string]string, *refusal) {
	tags := map[string]string{}
	list, _ := r.in["Tags"].([]any)
	for _, entry := range list {
		tag, _ := entry.(object)
		key, _ := tag["Key"].(string)
		value, _ := tag["Value"].(string)
		if _, twice := tags[key]; twice {
			return nil, reject("InvalidParameterException", "Duplicate tag keys are not allowed.")
		}
		if strings.HasPrefix(strings.ToLower(key), "aws:") || !legalTag.MatchString(key) || !legalTag.MatchString(value) {
			return nil, reject("InvalidParameterException", "The tag is not valid.")
		}
		tags[key] = value
	}
	return tags, nil
}

func (r *request) create() (any, *refusal) {
	name := r.text("Name")
	if !legalName.MatchString(name) {
		return nil, reject("InvalidParameterException", "Invalid name. Must be a valid name containing alphanumeric characters, or any of the following: -/_+=.@!")
	}
	v, rejected := r.content()
	if rejected != nil {
		return nil, rejected
	}
	tags, rejected := r.tags()
	if rejected != nil {
		return nil, rejected
	}
	token := r.text("ClientRequestToken")
	k := r.s.named(name)
	switch {
	case r.s.dying[name] || k != nil && !k.deleteAt.IsZero():
		return nil, reject("InvalidRequestException", "You can't create this secret because a secret with this name is already scheduled for deletion.")
	case k != nil && v != nil && k.versions[token] != nil && k.versions[token].same(v):
		return object{"ARN": k.arn, "Name": name, "VersionId": token}, nil
	case k != nil:
		return nil, reject("ResourceExistsException", "The operation failed because the secret %s already exists.", name)
	case len(tags) > maxTags:
		return nil, reject("InvalidParameterException", "A secret has at most %d tags.", maxTags)
	case strings.Contains(r.text("KmsKeyId"), "disabled"):
		return nil, reject("EncryptionFailure", "Secrets Manager can't encrypt the protected secret text using the provided KMS key.")
	}
	k = r.s.add(name, tags, r.now)
	k.kms = r.text("KmsKeyId")
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
	arn := fmt.Sprintf("arn:aws:secretsmanager:%s:%s:secret:%s-%s", s.Region, account, name, rand.Text()[:6])
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

func (r *request) describe() (any, *refusal) {
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

func (r *request) getValue() (any, *refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	id, label := r.text("VersionId"), r.text("VersionStage")
	if label == "" && id == "" {
		label = current
	}
	if id == "" {
		id = k.holder(label)
	}
	v := k.versions[id]
	if v == nil || label != "" && !slices.Contains(v.labels, label) {
		return nil, reject("ResourceNotFoundException", "Secrets Manager can't find the specified secret value for staging label or version.")
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

func (r *request) putValue() (any, *refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	v, rejected := r.content()
	switch {
	case rejected != nil:
		return nil, rejected
	case v == nil:
		return nil, reject("InvalidParameterException", "You must provide either SecretString or SecretBinary.")
	case k.owner != "":
		return nil, reject("InvalidRequestException", "You can't perform this operation because the secret is managed by %s.", k.owner)
	}
	token, labels := r.text("ClientRequestToken"), r.texts("VersionStages")
	if labels == nil || k.holder(current) == "" {
		labels = append(labels, current)
	}
	switch old := k.versions[token]; {
	case old != nil && !old.same(v):
		return nil, reject("ResourceExistsException", "You can't modify an existing version, you can only create a new version.")
	case old == nil:
		if rejected := k.put(token, v, labels, r.now); rejected != nil {
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
func (k *secret) put(id string, v *version, labels []string, now time.Time) *refusal {
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
		return reject("LimitExceededException", "You've exceeded the quota of versions or of staging labels.")
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

func (r *request) updateStage() (any, *refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	label, to, from := r.text("VersionStage"), r.text("MoveToVersionId"), r.text("RemoveFromVersionId")
	holder := k.holder(label)
	switch {
	case to != "" && k.versions[to] == nil:
		return nil, reject("ResourceNotFoundException", "Secrets Manager can't find the specified secret version.")
	case from != "" && from != holder:
		return nil, reject("InvalidParameterException", "The staging label %s isn't attached to version %s.", label, from)
	case from == "" && holder != "" && holder != to:
		return nil, reject("InvalidParameterException", "The parameter RemoveFromVersionId can't be empty. Staging label %s is currently attached to version %s, "+
			"so you must explicitly reference that version in RemoveFromVersionId.", label, holder)
	case to == "" && label == current:
		return nil, reject("InvalidParameterException", "You can't remove the staging label %s.", label)
	case to == "":
		k.drop(label, from)
	default:
		k.move(label, to)
	}
	k.changed = r.now
	return object{"ARN": k.arn, "Name": k.name}, nil
}

func (r *request) tag() (any, *refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	tags, rejected := r.tags()
	if rejected != nil {
		return nil, rejected
	}
	all := maps.Clone(k.tags)
	maps.Copy(all, tags)
	if len(all) > maxTags {
		return nil, reject("InvalidParameterException", "A secret has at most %d tags.", maxTags)
	}
	k.tags, k.changed = all, r.now
	return nil, nil
}

func (r *request) untag() (any, *refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	for _, key := range r.texts("TagKeys") {
		delete(k.tags, key)
	}
	k.changed = r.now
	return nil, nil
}

func (r *request) remove() (any, *refusal) {
	force, days := r.yes("ForceDeleteWithoutRecovery"), r.number("RecoveryWindowInDays")
	k, rejected := r.find()
	switch {
	case force && r.has("RecoveryWindowInDays"):
		return nil, reject("InvalidParameterException", "You can't use ForceDeleteWithoutRecovery in conjunction with RecoveryWindowInDays.")
	case r.has("RecoveryWindowInDays") && (days < 7 || days > 30):
		return nil, reject("InvalidParameterException", "The RecoveryWindowInDays value must be between 7 and 30 days (inclusive).")
	case rejected != nil:
		return nil, rejected
	case k.owner != "":
		return nil, reject("InvalidRequestException", "You can't perform this operation because the secret is managed by %s.", k.owner)
	case len(k.replicas) > 0:
		return nil, reject("InvalidRequestException", "You can't delete secret %s that still has replica regions [%s].", k.name, strings.Join(slices.Sorted(maps.Keys(k.replicas)), ", "))
	case force:
		delete(r.s.secrets, k.arn)
		r.s.dying[k.name] = r.s.slow
		return object{"ARN": k.arn, "Name": k.name, "DeletionDate": seconds(r.now)}, nil
	case !k.deleteAt.IsZero():
		return nil, reject("InvalidRequestException", "You can't perform this operation on the secret because it was already scheduled for deletion.")
	case days == 0:
		days = 30
	}
	k.deleted, k.deleteAt = r.now, r.now.AddDate(0, 0, days)
	return object{"ARN": k.arn, "Name": k.name, "DeletionDate": seconds(k.deleteAt)}, nil
}

func (r *request) restore() (any, *refusal) {
	k, rejected := r.find()
	if rejected != nil {
		return nil, rejected
	}
	k.deleteAt, k.deleted = time.Time{}, time.Time{}
	return object{"ARN": k.arn, "Name": k.name}, nil
}

// update changes the key only: Coffer writes values in another way.
func (r *request) update() (any, *refusal) {
	k, rejected := r.live()
	switch {
	case rejected != nil:
		return nil, rejected
	case r.has("SecretString") || r.has("SecretBinary") || r.has("Description"):
		r.s.testing.Error("cloud1smtest: UpdateSecret is there for the key only")
	case strings.Contains(r.text("KmsKeyId"), "disabled"):
		return nil, reject("EncryptionFailure", "Secrets Manager can't encrypt the protected secret text using the provided KMS key.")
	case r.has("KmsKeyId"):
		k.kms, k.changed = r.text("KmsKeyId"), r.now
	}
	return object{"ARN": k.arn, "Name": k.name}, nil
}

// occupied is a region in which another secret has every name, so that replicas fail there.
const occupied = "us-gov-west-1"

func (r *request) addReplicas(k *secret) *refusal {
	list, _ := r.in["AddReplicaRegions"].([]any)
	for _, entry := range list {
		to, _ := entry.(object)
		region, _ := to["Region"].(string)
		key, _ := to["KmsKeyId"].(string)
		_, is := k.replicas[region]
		switch {
		case region == r.s.Region:
			return reject("InvalidParameterException", "Invalid replica region: it is the region of the secret.")
		case is && k.lost[region] == "":
			return reject("InvalidParameterException", "The secret is already replicated to %s.", region)
		}
		k.replicas[region] = key
		delete(k.lost, region)
		if region == occupied && !r.yes("ForceOverwriteReplicaSecret") {
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

func (r *request) replicate() (any, *refusal) {
	k, rejected := r.live()
	if rejected == nil {
		rejected = r.addReplicas(k)
	}
	if rejected != nil {
		return nil, rejected
	}
	k.changed = r.now
	return object{"ARN": k.arn, "ReplicationStatus": k.replication()}, nil
}

func (r *request) unreplicate() (any, *refusal) {
	k, rejected := r.live()
	if rejected != nil {
		return nil, rejected
	}
	for _, region := range r.texts("RemoveReplicaRegions") {
		if _, ok := k.replicas[region]; !ok {
			return nil, reject("InvalidParameterException", "The secret has no replica in %s.", region)
		}
		delete(k.replicas, region)
		delete(k.lost, region)
	}
	k.changed = r.now
	out := object{"ARN": k.arn}
	if len(k.replicas) > 0 {
		out["ReplicationStatus"] = k.replication()
	}
	return out, nil
}

func (r *request) list() (any, *refusal) {
	if r.has("Filters") {
		r.s.testing.Error("cloud1smtest: there are no filters here")
	}
	after := 0
	if r.has("NextToken") {
		n, err := strconv.Atoi(strings.TrimPrefix(r.text("NextToken"), "after-"))
		if err != nil {
			return nil, reject("InvalidNextTokenException", "The NextToken value is invalid.")
		}
		after = n
	}
	size := r.s.pageSize
	if n := r.number("MaxResults"); n > 0 {
		size = min(size, n)
	}
	page, out := []object{}, object{}
	all := slices.SortedFunc(maps.Values(r.s.secrets), func(a, b *secret) int { return a.number - b.number })
	for _, k := range all {
		if k.number <= after || !k.deleteAt.IsZero() && !r.yes("IncludePlannedDeletion") {
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
