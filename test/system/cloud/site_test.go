//go:build e2e

package cloud_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/iam"

	"github.com/coffer-project/coffer/test/harness"
)

// site is a mount on a server, and the emulator that it reaches.
type site struct {
	emulator
	c    *harness.Cluster
	name string
	seen *[]string // secrets that were issued
}

func (s *site) in(t *testing.T) *site {
	sub := *s
	sub.t = t
	return &sub
}

func keysOf(k keys) object { return object{"access_key": k.id, "secret_key": k.secret} }

// mounted mounts the engine and configures it.
func (s *site) mounted(name string, root object) *site {
	s.t.Helper()
	m := s.in(s.t)
	m.name = name
	wantStatus(s.t, "mount", send(s.t, s.c.Nodes[0], "POST", "sys/mounts/"+name, s.c.RootToken, object{"type": "cloud"}), 204)
	m.configure(root)
	return m
}

// configure writes config/root with the emulator's endpoints.
func (s *site) configure(root object) {
	s.t.Helper()
	all := object{"iam_endpoint": s.front, "sts_endpoint": s.front, "max_retries": 1}
	for name, value := range root {
		all[name] = value
	}
	a := s.do("POST", "config/root", all)
	if a.Status != 204 && a.Status != 200 { // 200 has warnings
		s.t.Fatalf("config/root: status %d: %.300s", a.Status, a.Body)
	}
}

func (s *site) do(verb, path string, body any) harness.Answer {
	s.t.Helper()
	return send(s.t, s.c.Nodes[0], verb, s.name+"/"+path, s.c.RootToken, body)
}

func (s *site) sys(verb, path string, body any) harness.Answer {
	s.t.Helper()
	return send(s.t, s.c.Nodes[0], verb, "sys/"+path, s.c.RootToken, body)
}

func (s *site) write(path string, body object) {
	s.t.Helper()
	wantStatus(s.t, path, s.do("POST", path, body), 204)
}

func (s *site) issue(path string, body any) issued {
	s.t.Helper()
	c := issuedOf(s.t, s.do("POST", path, body))
	*s.seen = append(*s.seen, c.Data.SecretKey)
	return c
}

// nameOf returns the user or session that keys are of.
func (s *site) nameOf(k keys) (name, arn string) {
	s.t.Helper()
	arn, code := s.identity(k)
	if code != "" {
		s.t.Fatalf("the provider does not let them in: %s", code)
	}
	return arn[strings.LastIndexByte(arn, '/')+1:], arn
}

// out wants keys to be refused.
func (s *site) out(what string, k keys) {
	s.t.Helper()
	if _, code := s.identity(k); code != "InvalidClientTokenId" {
		s.t.Errorf("%s: %q, want that the key is unknown", what, code)
	}
}

// may wants calls to be allowed or not.
func (s *site) may(k keys, call string, allowed bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := s.iam(k)
	var err error
	switch group := aws.String("temporary"); call {
	case "ListUsers":
		_, err = c.ListUsers(ctx, &iam.ListUsersInput{})
	case "ListRoles":
		_, err = c.ListRoles(ctx, &iam.ListRolesInput{})
	case "CreateGroup":
		_, err = c.CreateGroup(ctx, &iam.CreateGroupInput{GroupName: group})
	case "DeleteGroup":
		_, err = c.DeleteGroup(ctx, &iam.DeleteGroupInput{GroupName: group})
	case "CreateUser":
		_, err = c.CreateUser(ctx, &iam.CreateUserInput{UserName: aws.String("intruder")})
	default:
		s.t.Fatalf("unknown call %s", call)
	}
	want := map[bool]string{true: "", false: "AccessDenied"}[allowed]
	wantCode(s.t, call, err, want)
}

// gone wants a user not to be there.
func (s *site) gone(name string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := s.iam(s.admin).GetUser(ctx, &iam.GetUserInput{UserName: &name})
	wantCode(s.t, "the user", err, "NoSuchEntity")
}

// revoke ends a lease, and returns when the engine has done its part.
func (s *site) revoke(c issued) {
	s.t.Helper()
	wantStatus(s.t, "revoke", s.sys("POST", "leases/revoke", object{"lease_id": c.Lease, "sync": true}), 204)
}

// burden gives a user everything that keeps it from being deleted, and returns the serial number of its device.
func (s *site) burden(name string) (device string) {
	s.t.Helper()
	c := s.iam(s.admin)
	did(s.t, func(ctx context.Context) (*iam.CreateLoginProfileOutput, error) {
		return c.CreateLoginProfile(ctx, &iam.CreateLoginProfileInput{UserName: &name, Password: aws.String("Only-4-the-console")})
	})
	device = *did(s.t, func(ctx context.Context) (*iam.CreateVirtualMFADeviceOutput, error) {
		return c.CreateVirtualMFADevice(ctx, &iam.CreateVirtualMFADeviceInput{VirtualMFADeviceName: &name})
	}).VirtualMFADevice.SerialNumber
	did(s.t, func(ctx context.Context) (*iam.EnableMFADeviceOutput, error) {
		return c.EnableMFADevice(ctx, &iam.EnableMFADeviceInput{
			UserName: &name, SerialNumber: &device, AuthenticationCode1: aws.String("123456"), AuthenticationCode2: aws.String("234567"),
		})
	})
	certificate := certificatePEM(s.t)
	did(s.t, func(ctx context.Context) (*iam.UploadSigningCertificateOutput, error) {
		return c.UploadSigningCertificate(ctx, &iam.UploadSigningCertificateInput{UserName: &name, CertificateBody: &certificate})
	})
	did(s.t, func(ctx context.Context) (*iam.UploadSSHPublicKeyOutput, error) {
		return c.UploadSSHPublicKey(ctx, &iam.UploadSSHPublicKeyInput{UserName: &name, SSHPublicKeyBody: aws.String("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA")})
	})
	did(s.t, func(ctx context.Context) (*iam.AddUserToGroupOutput, error) {
		return c.AddUserToGroup(ctx, &iam.AddUserToGroupInput{UserName: &name, GroupName: aws.String("devs")})
	})
	did(s.t, func(ctx context.Context) (*iam.PutUserPolicyOutput, error) {
		return c.PutUserPolicy(ctx, &iam.PutUserPolicyInput{UserName: &name, PolicyName: aws.String("more"), PolicyDocument: aws.String(allow("iam:GetUser"))})
	})
	did(s.t, func(ctx context.Context) (*iam.AttachUserPolicyOutput, error) {
		return c.AttachUserPolicy(ctx, &iam.AttachUserPolicyInput{UserName: &name, PolicyArn: aws.String(readOnly)})
	})
	s.mu.Lock()
	s.served[name] = "ACCAEXAMPLEEXAMPLE00"
	s.mu.Unlock()
	return device
}

func certificatePEM(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// wantSession wants temporary credentials that last so long, of which there is no lease.
func wantSession(t *testing.T, c issued, seconds int) {
	t.Helper()
	if c.Seconds > seconds || c.Seconds < seconds-10 || c.Renewable || c.Data.TTL != c.Seconds {
		t.Errorf("%d s, ttl %d, renewable %v; want %d s", c.Seconds, c.Data.TTL, c.Renewable, seconds)
	}
	if c.Data.SessionToken == nil || c.Data.SecurityToken == nil || *c.Data.SessionToken != *c.Data.SecurityToken {
		t.Error("session_token and security_token are not the same")
	}
}

// current returns the key of a static role, and when it is replaced.
func (s *site) current(name string) (keys, time.Time) {
	s.t.Helper()
	data := dataOf(s.t, s.do("GET", "static-creds/"+name, nil))
	expiration, err := time.Parse(time.RFC3339, data["expiration"].(string))
	if err != nil {
		s.t.Error(err)
	}
	k := keys{id: data["access_key"].(string), secret: data["secret_key"].(string)}
	*s.seen = append(*s.seen, k.secret)
	return k, expiration
}
