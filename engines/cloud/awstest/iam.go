package awstest

import (
	"slices"
	"strconv"
	"strings"

	"github.com/coffer-project/coffer/engines/cloud/awstest/query"
)

// Quotas of the provider.
const (
	maxKeys     = 2
	maxAttached = 10
	maxGroups   = 10
	maxTags     = 50
	maxInline   = 2048 // characters of all inline policies of a user, without white space
)

// actions is what the services do. Each function holds Server.mu.
var actions = map[string]func(*request) ([]query.Element, *query.Refusal){
	"CreateUser":   createUser,
	"GetUser":      getUser,
	"ListUsers":    listUsers,
	"DeleteUser":   deleteUser,
	"TagUser":      tagUser,
	"ListUserTags": listUserTags,

	"CreateAccessKey":      createAccessKey,
	"ListAccessKeys":       listAccessKeys,
	"UpdateAccessKey":      updateAccessKey,
	"DeleteAccessKey":      deleteAccessKey,
	"GetAccessKeyLastUsed": keyLastUsed,

	"AttachUserPolicy":          attachUserPolicy,
	"DetachUserPolicy":          detachUserPolicy,
	"ListAttachedUserPolicies":  listAttachedUserPolicies,
	"PutUserPolicy":             putUserPolicy,
	"GetUserPolicy":             getUserPolicy,
	"DeleteUserPolicy":          deleteUserPolicy,
	"ListUserPolicies":          listUserPolicies,
	"AddUserToGroup":            addUserToGroup,
	"RemoveUserFromGroup":       removeUserFromGroup,
	"ListGroupsForUser":         listGroupsForUser,
	"ListGroupPolicies":         listGroupPolicies,
	"GetGroupPolicy":            getGroupPolicy,
	"ListAttachedGroupPolicies": listAttachedGroupPolicies,

	"GetLoginProfile":                 getLoginProfile,
	"DeleteLoginProfile":              deleteLoginProfile,
	"ListMFADevices":                  listMFADevices,
	"DeactivateMFADevice":             deactivateMFADevice,
	"DeleteVirtualMFADevice":          deleteVirtualMFADevice,
	"ListSigningCertificates":         listSigningCertificates,
	"DeleteSigningCertificate":        deleteSigningCertificate,
	"ListSSHPublicKeys":               listSSHPublicKeys,
	"DeleteSSHPublicKey":              deleteSSHPublicKey,
	"ListServiceSpecificCredentials":  listServiceCredentials,
	"DeleteServiceSpecificCredential": deleteServiceCredential,

	"GetCallerIdentity": getCallerIdentity,
	"AssumeRole":        assumeRole,

	"AssumeRoleWithWebIdentity": assumeRoleWithWebIdentity,
	"GetFederationToken":        getFederationToken,
	"GetSessionToken":           getSessionToken,
}

// account is the caller's.
func (r *request) account() *Account { return r.caller.account }

// user returns the user that a request names, or without a name the caller.
func (r *request) user() (*user, *query.Refusal) {
	name := r.get("UserName")
	if name == "" {
		if r.caller.user == nil {
			return nil, query.Refuse("ValidationError", "Must specify userName when calling with non-User credentials")
		}
		return r.caller.user, nil
	}
	u := r.account().users[fold(name)]
	if u == nil || u.name != name || u.visibleAt.After(r.now) {
		return nil, query.Refuse("NoSuchEntity", "The user with name %s cannot be found.", name)
	}
	return u, nil
}

// tags returns the tags of a request.
func (r *request) tags() (map[string]string, *query.Refusal) {
	keys, values := r.list("Tags", ".Key"), r.list("Tags", ".Value")
	if len(keys) != len(values) {
		return nil, query.Refuse("ValidationError", "A tag needs a key and a value")
	}
	tags := map[string]string{}
	for i, k := range keys {
		if _, twice := tags[k]; twice || strings.HasPrefix(fold(k), "aws:") {
			return nil, query.Refuse("InvalidInput", "Duplicate tag keys found, or tag keys with the prefix aws:. Please note that Tag keys are case insensitive.")
		}
		tags[k] = values[i]
	}
	return tags, nil
}

func (u *user) describe(full bool) []query.Element {
	all := []query.Element{
		query.Text("Path", u.path), query.Text("UserName", u.name), query.Text("UserId", u.id), query.Text("Arn", u.arn()), query.When("CreateDate", u.created),
	}
	if !full {
		return all
	}
	if u.boundary != "" {
		all = append(all, query.Group("PermissionsBoundary",
			query.Text("PermissionsBoundaryType", "PermissionsBoundaryPolicy"), query.Text("PermissionsBoundaryArn", u.boundary)))
	}
	if len(u.tags) > 0 {
		tags := query.Group("Tags")
		for _, k := range sortedKeys(u.tags) {
			tags.Inside = append(tags.Inside, query.Group("member", query.Text("Key", k), query.Text("Value", u.tags[k])))
		}
		all = append(all, tags)
	}
	return all
}

func createUser(r *request) ([]query.Element, *query.Refusal) {
	a, name := r.account(), r.get("UserName")
	if a.users[fold(name)] != nil {
		return nil, query.Refuse("EntityAlreadyExists", "User with name %s already exists.", name)
	}
	tags, refused := r.tags()
	if refused != nil {
		return nil, refused
	}
	boundary := r.get("PermissionsBoundary")
	if boundary != "" && !a.hasPolicy(boundary) {
		return nil, query.Refuse("NoSuchEntity", "Scope ARN: %s does not exist or is not attachable.", boundary)
	}
	u := newUser(a, name, r.get("Path"), r.now)
	u.boundary, u.tags, u.visibleAt = boundary, tags, r.now.Add(r.s.delay)
	a.users[fold(name)] = u
	return []query.Element{query.Group("User", u.describe(true)...)}, nil
}

func getUser(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	return []query.Element{query.Group("User", u.describe(true)...)}, nil
}

func listUsers(r *request) ([]query.Element, *query.Refusal) {
	var rows []query.Row
	for name, u := range r.account().users {
		if strings.HasPrefix(u.path, r.get("PathPrefix")) && !u.visibleAt.After(r.now) {
			rows = append(rows, query.Row{Key: name, Element: query.Group("", u.describe(false)...)})
		}
	}
	return r.page("Users", rows)
}

func deleteUser(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	for _, obstacle := range []struct {
		there bool
		what  string
	}{
		{len(u.attached) > 0, "detach all policies first"},
		{len(u.inline) > 0, "delete policies first"},
		{len(u.keys) > 0, "delete access keys first"},
		{len(u.groups) > 0, "remove users from group first"},
		{u.login, "delete login profile first"},
		{len(u.mfa) > 0, "deactivate MFA devices first"},
		{len(u.certs) > 0, "delete signing certificates first"},
		{len(u.ssh) > 0, "delete SSH public keys first"},
		{len(u.services) > 0, "delete service specific credentials first"},
	} {
		if obstacle.there {
			return nil, query.Refuse("DeleteConflict", "Cannot delete entity, must %s.", obstacle.what)
		}
	}
	delete(u.account.users, fold(u.name))
	return nil, nil
}

func tagUser(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	tags, refused := r.tags()
	if refused != nil {
		return nil, refused
	}
	all := map[string]string{}
	for _, m := range []map[string]string{u.tags, tags} {
		for k, v := range m {
			all[k] = v
		}
	}
	if len(all) > maxTags {
		return nil, query.Refuse("LimitExceeded", "The number of tags has reached the maximum limit.")
	}
	u.tags = all
	return nil, nil
}

func listUserTags(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	var rows []query.Row
	for k, v := range u.tags {
		rows = append(rows, query.Row{Key: k, Element: query.Group("", query.Text("Key", k), query.Text("Value", v))})
	}
	return r.page("Tags", rows)
}

func (k *accessKey) status() query.Element {
	if k.active {
		return query.Text("Status", "Active")
	}
	return query.Text("Status", "Inactive")
}

func createAccessKey(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	if len(u.keys) >= maxKeys {
		return nil, query.Refuse("LimitExceeded", "Cannot exceed quota for AccessKeysPerUser: %d", maxKeys)
	}
	k := newKey(u, r.now)
	k.validAt = r.now.Add(r.s.keyDelay)
	return []query.Element{query.Group("AccessKey", query.Text("UserName", u.name), query.Text("AccessKeyId", k.id), k.status(),
		query.Text("SecretAccessKey", k.secret), query.When("CreateDate", k.created))}, nil
}

// listAccessKeys lists them by their ids, which are random: an order that means nothing, as the provider promises none.
func listAccessKeys(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	var rows []query.Row
	for _, k := range u.keys {
		rows = append(rows, query.Row{Key: k.id, Element: query.Group("", query.Text("UserName", u.name), query.Text("AccessKeyId", k.id), k.status(),
			query.When("CreateDate", k.created))})
	}
	return r.page("AccessKeyMetadata", rows)
}

// key returns the key that a request names, which has to be one of the named user, or of the caller.
func (r *request) key() (*accessKey, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	id := r.get("AccessKeyId")
	i := slices.IndexFunc(u.keys, func(k *accessKey) bool { return k.id == id })
	if i < 0 {
		return nil, query.Refuse("NoSuchEntity", "The Access Key with id %s cannot be found.", id)
	}
	return u.keys[i], nil
}

func updateAccessKey(r *request) ([]query.Element, *query.Refusal) {
	k, refused := r.key()
	if refused != nil {
		return nil, refused
	}
	k.active = r.get("Status") == "Active"
	return nil, nil
}

func deleteAccessKey(r *request) ([]query.Element, *query.Refusal) {
	k, refused := r.key()
	if refused != nil {
		return nil, refused
	}
	k.remove()
	return nil, nil
}

func keyLastUsed(r *request) ([]query.Element, *query.Refusal) {
	k := r.s.keys[r.get("AccessKeyId")]
	if k == nil || k.user.account != r.account() {
		return nil, query.Refuse("AccessDenied", "The access key cannot be found.")
	}
	last := query.Group("AccessKeyLastUsed", query.Text("ServiceName", "N/A"), query.Text("Region", "N/A"))
	if !k.usedAt.IsZero() {
		last = query.Group("AccessKeyLastUsed", query.Text("ServiceName", "sts"), query.Text("Region", "us-east-1"), query.When("LastUsedDate", k.usedAt))
	}
	return []query.Element{query.Text("UserName", k.user.name), last}, nil
}

// strip returns a list without one member, and whether it was there.
func strip(list []string, member string) ([]string, bool) {
	i := slices.Index(list, member)
	if i < 0 {
		return list, false
	}
	return slices.Delete(slices.Clone(list), i, i+1), true
}

func getLoginProfile(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	if !u.login {
		return nil, query.Refuse("NoSuchEntity", "Login Profile for User %s cannot be found.", u.name)
	}
	return []query.Element{query.Group("LoginProfile", query.Text("UserName", u.name), query.When("CreateDate", u.created),
		query.Text("PasswordResetRequired", strconv.FormatBool(false)))}, nil
}

func deleteLoginProfile(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	if !u.login {
		return nil, query.Refuse("NoSuchEntity", "Login Profile for User %s cannot be found.", u.name)
	}
	u.login = false
	return nil, nil
}

func listMFADevices(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	var rows []query.Row
	for serial := range u.mfa {
		rows = append(rows, query.Row{Key: serial, Element: query.Group("", query.Text("UserName", u.name), query.Text("SerialNumber", serial), query.When("EnableDate", u.created))})
	}
	return r.page("MFADevices", rows)
}

func deactivateMFADevice(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	serial := r.get("SerialNumber")
	if u.mfa[serial] == "" {
		return nil, query.Refuse("NoSuchEntity", "MFA Device with serial number %s does not exist.", serial)
	}
	delete(u.mfa, serial)
	if _, virtual := u.account.devices[serial]; virtual {
		u.account.devices[serial] = ""
	}
	return nil, nil
}

func deleteVirtualMFADevice(r *request) ([]query.Element, *query.Refusal) {
	serial := r.get("SerialNumber")
	owner, ok := r.account().devices[serial]
	if !ok {
		return nil, query.Refuse("NoSuchEntity", "VirtualMFADevice with serial number %s doesn't exist.", serial)
	}
	if owner != "" {
		return nil, query.Refuse("DeleteConflict", "MFA VirtualDevice in use. Must deactivate first.")
	}
	delete(r.account().devices, serial)
	return nil, nil
}

func listSigningCertificates(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	var rows []query.Row
	for _, id := range u.certs {
		rows = append(rows, query.Row{Key: id, Element: query.Group("", query.Text("UserName", u.name), query.Text("CertificateId", id), query.Text("Status", "Active"),
			query.Text("CertificateBody", "-"), query.When("UploadDate", u.created))})
	}
	return r.page("Certificates", rows)
}

func deleteSigningCertificate(r *request) ([]query.Element, *query.Refusal) {
	return r.drop("CertificateId", func(u *user) *[]string { return &u.certs })
}

func listSSHPublicKeys(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	var rows []query.Row
	for _, id := range u.ssh {
		rows = append(rows, query.Row{Key: id, Element: query.Group("", query.Text("UserName", u.name), query.Text("SSHPublicKeyId", id), query.Text("Status", "Active"),
			query.When("UploadDate", u.created))})
	}
	return r.page("SSHPublicKeys", rows)
}

func deleteSSHPublicKey(r *request) ([]query.Element, *query.Refusal) {
	return r.drop("SSHPublicKeyId", func(u *user) *[]string { return &u.ssh })
}

func listServiceCredentials(r *request) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	var rows []query.Row
	for _, id := range u.services {
		rows = append(rows, query.Row{Key: id, Element: query.Group("", query.Text("UserName", u.name), query.Text("ServiceSpecificCredentialId", id), query.Text("Status", "Active"),
			query.Text("ServiceName", "codecommit.amazonaws.com"), query.Text("ServiceUserName", u.name+"-at-"+u.account.ID), query.When("CreateDate", u.created))})
	}
	return r.page("ServiceSpecificCredentials", rows)
}

func deleteServiceCredential(r *request) ([]query.Element, *query.Refusal) {
	return r.drop("ServiceSpecificCredentialId", func(u *user) *[]string { return &u.services })
}

// drop removes an id that a request names from a list of a user.
func (r *request) drop(parameter string, of func(*user) *[]string) ([]query.Element, *query.Refusal) {
	u, refused := r.user()
	if refused != nil {
		return nil, refused
	}
	rest, ok := strip(*of(u), r.get(parameter))
	if !ok {
		return nil, query.Refuse("NoSuchEntity", "%s %s cannot be found.", parameter, r.get(parameter))
	}
	*of(u) = rest
	return nil, nil
}
