package backend

import (
	"context"
	"encoding/json"
	"time"

	"github.com/openbao/openbao/sdk/v2/helper/consts"
	"github.com/openbao/openbao/sdk/v2/logical"
	"github.com/openbao/openbao/sdk/v2/plugin/pb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/coffer-project/coffer/engines"
)

// System is what a plugin may know of the server, within the namespace of its mount. Safe for concurrent use.
type System interface {
	// TTLs returns the default and maximum lease TTL of the mount.
	TTLs() (defaultTTL, maxTTL time.Duration)
	// Local reports whether the mount's data stays in this cluster.
	Local() bool
	// Secondary reports whether another cluster writes what is shared.
	Secondary() bool
	// Entity returns an entity that an alias of the mount belongs to, nil if there is none.
	Entity(ctx context.Context, id string) (*Entity, error)
	// Password makes one by a password policy.
	Password(ctx context.Context, policy string) (string, error)
	// Wrap puts data where the holder of a token finds it.
	Wrap(ctx context.Context, data json.RawMessage, ttl time.Duration) (*engines.WrapInfo, error)
	// Cluster returns this cluster's name and id.
	Cluster() (name, id string)
}

// Entity is a user or workload, as plugins see it.
type Entity struct {
	ID, Name, NamespaceID string
	Disabled              bool
	Metadata              map[string]string
	Aliases               []Alias
	Groups                []Group
}

// Alias is a name of an entity at an auth method.
type Alias struct {
	ID, MountType, MountAccessor, Name string
	Metadata                           map[string]string
}

// Group is one that an entity is in.
type Group struct {
	ID, Name, NamespaceID string
	Metadata              map[string]string
}

// system answers what a plugin asks about the system.
type system struct {
	pb.UnimplementedSystemViewServer
	setup Setup
}

// DefaultLeaseTTL implements pb.SystemViewServer.
func (s *system) DefaultLeaseTTL(context.Context, *pb.Empty) (*pb.TTLReply, error) {
	ttl, _ := s.setup.System.TTLs()
	return &pb.TTLReply{TTL: int64(ttl)}, nil
}

// MaxLeaseTTL implements pb.SystemViewServer.
func (s *system) MaxLeaseTTL(context.Context, *pb.Empty) (*pb.TTLReply, error) {
	_, ttl := s.setup.System.TTLs()
	return &pb.TTLReply{TTL: int64(ttl)}, nil
}

// Tainted implements pb.SystemViewServer.
func (s *system) Tainted(context.Context, *pb.Empty) (*pb.TaintedReply, error) {
	return &pb.TaintedReply{}, nil
}

// CachingDisabled implements pb.SystemViewServer.
func (s *system) CachingDisabled(context.Context, *pb.Empty) (*pb.CachingDisabledReply, error) {
	return &pb.CachingDisabledReply{}, nil
}

// ReplicationState implements pb.SystemViewServer. On a secondary, plugins leave what is due to the primary, unless their mount is local.
func (s *system) ReplicationState(context.Context, *pb.Empty) (*pb.ReplicationStateReply, error) {
	reply := &pb.ReplicationStateReply{}
	if s.setup.System.Secondary() {
		reply.State = int32(consts.ReplicationPerformanceSecondary)
	}
	return reply, nil
}

// MlockEnabled implements pb.SystemViewServer.
func (s *system) MlockEnabled(context.Context, *pb.Empty) (*pb.MlockEnabledReply, error) {
	return &pb.MlockEnabledReply{}, nil
}

// LocalMount implements pb.SystemViewServer.
func (s *system) LocalMount(context.Context, *pb.Empty) (*pb.LocalMountReply, error) {
	return &pb.LocalMountReply{Local: s.setup.System.Local()}, nil
}

// PluginEnv implements pb.SystemViewServer.
func (s *system) PluginEnv(context.Context, *pb.Empty) (*pb.PluginEnvReply, error) {
	return &pb.PluginEnvReply{PluginEnvironment: &logical.PluginEnvironment{VaultVersion: s.setup.Version}}, nil
}

// EntityInfo implements pb.SystemViewServer.
func (s *system) EntityInfo(ctx context.Context, in *pb.EntityInfoArgs) (*pb.EntityInfoReply, error) {
	e, err := s.setup.System.Entity(ctx, in.GetEntityID())
	if err != nil {
		return &pb.EntityInfoReply{Err: err.Error()}, nil
	}
	if e == nil {
		return &pb.EntityInfoReply{}, nil
	}
	out := &logical.Entity{ID: e.ID, Name: e.Name, Disabled: e.Disabled, Metadata: e.Metadata, NamespaceID: e.NamespaceID}
	for _, a := range e.Aliases {
		out.Aliases = append(out.Aliases, &logical.Alias{
			ID: a.ID, MountType: a.MountType, MountAccessor: a.MountAccessor, Name: a.Name, Metadata: a.Metadata,
		})
	}
	return &pb.EntityInfoReply{Entity: out}, nil
}

// GroupsForEntity implements pb.SystemViewServer.
func (s *system) GroupsForEntity(ctx context.Context, in *pb.EntityInfoArgs) (*pb.GroupsForEntityReply, error) {
	e, err := s.setup.System.Entity(ctx, in.GetEntityID())
	if err != nil {
		return &pb.GroupsForEntityReply{Err: err.Error()}, nil
	}
	reply := &pb.GroupsForEntityReply{}
	if e != nil {
		for _, g := range e.Groups {
			reply.Groups = append(reply.Groups, &logical.Group{ID: g.ID, Name: g.Name, Metadata: g.Metadata, NamespaceID: g.NamespaceID})
		}
	}
	return reply, nil
}

// GeneratePasswordFromPolicy implements pb.SystemViewServer.
func (s *system) GeneratePasswordFromPolicy(ctx context.Context, in *pb.GeneratePasswordFromPolicyRequest) (*pb.GeneratePasswordFromPolicyReply, error) {
	password, err := s.setup.System.Password(ctx, in.GetPolicyName())
	return &pb.GeneratePasswordFromPolicyReply{Password: password}, err
}

// ResponseWrapData implements pb.SystemViewServer.
func (s *system) ResponseWrapData(ctx context.Context, in *pb.ResponseWrapDataArgs) (*pb.ResponseWrapDataReply, error) {
	info, err := s.setup.System.Wrap(ctx, json.RawMessage(in.GetData()), time.Duration(in.GetTTL()))
	if err != nil {
		return &pb.ResponseWrapDataReply{Err: err.Error()}, nil
	}
	created, err := time.Parse(time.RFC3339Nano, info.CreationTime)
	if err != nil {
		return nil, err
	}
	return &pb.ResponseWrapDataReply{WrapInfo: &pb.ResponseWrapInfo{
		TTL: info.TTL * int64(time.Second), Token: info.Token, Accessor: info.Accessor,
		CreationTime: timestamppb.New(created), CreationPath: info.CreationPath,
	}}, nil
}

// ClusterInfo implements pb.SystemViewServer.
func (s *system) ClusterInfo(context.Context, *pb.Empty) (*pb.ClusterInfoReply, error) {
	name, id := s.setup.System.Cluster()
	return &pb.ClusterInfoReply{ClusterName: name, ClusterID: id}, nil
}
