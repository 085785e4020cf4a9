package cloud3smtest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

func copied[M proto.Message](m M) M { return proto.CloneOf(m) }

// The methods below are called with the mutex held, by intercept.

// find returns a secret.
func (s *Server) find(path string) (*secret, string, error) {
	name, _, err := split(path)
	if err != nil {
		return nil, "", err
	}
	if sec := s.secrets[name]; sec != nil {
		return sec, name, nil
	}
	return nil, "", status.Errorf(codes.NotFound, "Secret [projects/%s/secrets/%s] not found.", Number, name)
}

// findVersion returns a version by number, or the one made last as "latest".
func (s *Server) findVersion(path string) (*version, error) {
	sec, name, err := s.find(path)
	if err != nil {
		_, id, _ := split(path)
		if status.Code(err) == codes.NotFound && id == "latest" {
			err = status.Errorf(codes.NotFound, "Secret [projects/%s/secrets/%s] not found or has no versions.", Number, name)
		}
		return nil, err
	}
	_, id, _ := split(path)
	n, err := strconv.Atoi(id)
	if id == "latest" {
		if n, err = len(sec.versions), nil; sec.stale > 0 {
			n = sec.stale
		}
	}
	if err != nil {
		return nil, invalid("The version is malformed.")
	}
	if n < 1 || n > len(sec.versions) {
		return nil, status.Errorf(codes.NotFound, "Secret [projects/%s/secrets/%s] not found or has no versions.", Number, name)
	}
	return sec.versions[n-1], nil
}

func checkEtag(given, stored string) error {
	if given != "" && given != stored {
		return status.Errorf(codes.FailedPrecondition, "The etag provided in the request does not match the resource's current etag. Please retry the whole read-modify-write.")
	}
	return nil
}

// CreateSecret is the service's.
func (s *Server) CreateSecret(_ context.Context, in *secretmanagerpb.CreateSecretRequest) (*secretmanagerpb.Secret, error) {
	want := in.GetSecret()
	switch {
	case !secretID.MatchString(in.GetSecretId()):
		return nil, invalid("The secret id is malformed.")
	case want.GetName() != "" || want.GetCreateTime() != nil:
		return nil, invalid("A field is output only.")
	}
	if err := cmp.Or(checkReplication(want.GetReplication()), checkLabels(want.GetLabels()), checkAnnotations(want.GetAnnotations())); err != nil {
		return nil, err
	}
	if s.secrets[in.SecretId] != nil {
		return nil, status.Errorf(codes.AlreadyExists, "Secret [projects/%s/secrets/%s] already exists.", Number, in.SecretId)
	}
	return copied(s.add(in.SecretId, copied(want)).record), nil
}

// GetSecret is the service's.
func (s *Server) GetSecret(_ context.Context, in *secretmanagerpb.GetSecretRequest) (*secretmanagerpb.Secret, error) {
	sec, _, err := s.find(in.GetName())
	if err != nil {
		return nil, err
	}
	return copied(sec.record), nil
}

// UpdateSecret is the service's, for labels and annotations.
func (s *Server) UpdateSecret(_ context.Context, in *secretmanagerpb.UpdateSecretRequest) (*secretmanagerpb.Secret, error) {
	sec, _, err := s.find(in.GetSecret().GetName())
	if err != nil {
		return nil, err
	}
	if len(in.GetUpdateMask().GetPaths()) == 0 {
		return nil, invalid("Field [update_mask] is required.")
	}
	if err := checkEtag(in.Secret.Etag, sec.record.Etag); err != nil {
		return nil, err
	}
	next := copied(sec.record)
	for _, path := range in.UpdateMask.Paths {
		switch path {
		case "labels":
			next.Labels = in.Secret.Labels
		case "annotations":
			next.Annotations = in.Secret.Annotations
		default:
			return nil, invalid("Field [%s] cannot be updated.", path)
		}
	}
	if err := cmp.Or(checkLabels(next.Labels), checkAnnotations(next.Annotations)); err != nil {
		return nil, err
	}
	next.Etag = s.etag()
	sec.record = next
	return copied(next), nil
}

// DeleteSecret is the service's.
func (s *Server) DeleteSecret(_ context.Context, in *secretmanagerpb.DeleteSecretRequest) (*emptypb.Empty, error) {
	sec, name, err := s.find(in.GetName())
	if err != nil {
		return nil, err
	}
	if err := checkEtag(in.GetEtag(), sec.record.Etag); err != nil {
		return nil, err
	}
	delete(s.secrets, name)
	return &emptypb.Empty{}, nil
}

// AddSecretVersion is the service's. The secret's etag stays as it is.
func (s *Server) AddSecretVersion(_ context.Context, in *secretmanagerpb.AddSecretVersionRequest) (*secretmanagerpb.SecretVersion, error) {
	_, name, err := s.find(in.GetParent())
	if err != nil {
		return nil, err
	}
	data, sum := in.GetPayload().GetData(), in.GetPayload().DataCrc32C
	switch {
	case len(data) == 0:
		return nil, invalid("Field [payload] is required.")
	case len(data) > maxPayload:
		return nil, invalid("The payload is larger than 64KiB.")
	case sum != nil && *sum != *checksum(data):
		return nil, invalid("The checksum does not match the payload.")
	}
	return copied(s.addVersion(name, slices.Clone(data), sum != nil).record), nil
}

// AccessSecretVersion is the service's.
func (s *Server) AccessSecretVersion(_ context.Context, in *secretmanagerpb.AccessSecretVersionRequest) (*secretmanagerpb.AccessSecretVersionResponse, error) {
	v, err := s.findVersion(in.GetName())
	if err != nil {
		return nil, err
	}
	if v.record.State != secretmanagerpb.SecretVersion_ENABLED {
		return nil, status.Errorf(codes.FailedPrecondition, "Secret Version [%s] is in %s state.", v.record.Name, v.record.State)
	}
	return &secretmanagerpb.AccessSecretVersionResponse{
		Name: v.record.Name, Payload: &secretmanagerpb.SecretPayload{Data: slices.Clone(v.data), DataCrc32C: &v.sum},
	}, nil
}

// GetSecretVersion is the service's.
func (s *Server) GetSecretVersion(_ context.Context, in *secretmanagerpb.GetSecretVersionRequest) (*secretmanagerpb.SecretVersion, error) {
	v, err := s.findVersion(in.GetName())
	if err != nil {
		return nil, err
	}
	return copied(v.record), nil
}

// DestroySecretVersion is the service's.
func (s *Server) DestroySecretVersion(_ context.Context, in *secretmanagerpb.DestroySecretVersionRequest) (*secretmanagerpb.SecretVersion, error) {
	v, err := s.findVersion(in.GetName())
	if err != nil {
		return nil, err
	}
	if err := checkEtag(in.GetEtag(), v.record.Etag); err != nil {
		return nil, err
	}
	if v.record.State == secretmanagerpb.SecretVersion_DESTROYED {
		return nil, status.Errorf(codes.FailedPrecondition, "SecretVersion.state is already DESTROYED.")
	}
	v.record.State, v.record.DestroyTime, v.record.Etag, v.data = secretmanagerpb.SecretVersion_DESTROYED, s.now(), s.etag(), nil
	return copied(v.record), nil
}

// ListSecrets is the service's, without filters.
func (s *Server) ListSecrets(_ context.Context, in *secretmanagerpb.ListSecretsRequest) (*secretmanagerpb.ListSecretsResponse, error) {
	if in.GetFilter() != "" {
		return nil, status.Error(codes.Unimplemented, "there are no filters here")
	}
	all := make([]*secret, 0, len(s.secrets))
	for _, sec := range s.secrets {
		all = append(all, sec)
	}
	slices.SortFunc(all, func(a, b *secret) int { return cmp.Compare(b.made, a.made) })
	out := &secretmanagerpb.ListSecretsResponse{TotalSize: int32(len(all))} // #nosec G115 -- few
	before := int64(0)
	if token := in.GetPageToken(); token != "" {
		if _, err := fmt.Sscanf(token, "before-%d", &before); err != nil {
			return nil, invalid("The page token is malformed.")
		}
		all = slices.DeleteFunc(all, func(sec *secret) bool { return sec.made >= before })
	}
	size := s.pages
	if n := int(in.GetPageSize()); n > 0 {
		size = min(n, size)
	}
	if len(all) > size {
		all = all[:size]
		out.NextPageToken = fmt.Sprintf("before-%d", all[size-1].made)
	}
	for _, sec := range all {
		out.Secrets = append(out.Secrets, copied(sec.record))
	}
	return out, nil
}

// TestIamPermissions is the service's. A secret that is not there has none.
func (s *Server) TestIamPermissions(_ context.Context, in *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
	out := &iampb.TestIamPermissionsResponse{}
	if _, _, err := s.find(in.GetResource()); err != nil {
		return out, nil
	}
	for _, p := range in.GetPermissions() {
		if !slices.Contains(Permissions, p) {
			return nil, invalid("Permission %s is not valid for this resource.", p)
		}
		if slices.Contains(s.granted, p) {
			out.Permissions = append(out.Permissions, p)
		}
	}
	return out, nil
}
