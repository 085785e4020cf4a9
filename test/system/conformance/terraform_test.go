package conformance_test

import (
	"os"
	"testing"
)

// resource is something that Terraform's provider keeps: what it writes, and what it must read back for its next plan to be empty.
type resource struct {
	path    string
	write   map[string]any
	read    map[string]any // what write has besides is not read back
	change  map[string]any // a second write, of all fields
	changed map[string]any
	stays   bool // a DELETE does not remove it
}

// terraform writes resources as the provider does, reads them as it does for a plan, changes them and destroys them.
func (x *tour) terraform(t *testing.T) {
	c := x.root
	accessor := x.method(t, c, x.my("tf-people"), "userpass")
	noErr(t, c.enableAuth(x.my("tf-saml"), "saml"))
	noErr(t, c.enableAuth(x.my("tf-cert"), "cert"))
	done(t)(c.write("sys/mounts/"+x.my("tf-kv"), map[string]any{"type": "kv", "options": map[string]any{"version": "2"}}))
	done(t)(c.write("sys/mounts/"+x.my("tf-aws"), map[string]any{"type": "aws"}))
	method := data(t)(c.write("identity/mfa/method/totp", map[string]any{"issuer": "coffer"}))["method_id"].(string)
	ca, err := os.ReadFile(x.CAFile)
	noErr(t, err)
	for name, r := range map[string]resource{
		"vault_kv_secret_backend_v2": {
			path: x.my("tf-kv") + "/config", stays: true,
			write:   map[string]any{"max_versions": 5, "cas_required": true, "delete_version_after": "12600s"},
			read:    map[string]any{"max_versions": 5, "cas_required": true, "delete_version_after": "3h30m0s"},
			change:  map[string]any{"max_versions": 6, "cas_required": false},
			changed: map[string]any{"max_versions": 6, "cas_required": false},
		},
		"vault_token_auth_backend_role": {
			path: "auth/token/roles/" + x.my("tf"),
			write: map[string]any{
				"allowed_policies": []string{"default", "web"}, "disallowed_policies": []string{}, "orphan": true, "renewable": true, "token_period": 86400,
				"token_bound_cidrs": []string{"10.1.2.3", "10.0.0.0/8"}, "token_type": "default-service", "path_suffix": "",
			},
			read: map[string]any{
				"allowed_policies": []string{"default", "web"}, "orphan": true, "renewable": true, "token_period": 86400,
				"token_bound_cidrs": []string{"10.1.2.3", "10.0.0.0/8"}, "token_type": "default-service",
			},
			change:  map[string]any{"allowed_policies": []string{"web"}, "token_period": 0, "token_bound_cidrs": []string{}},
			changed: map[string]any{"allowed_policies": []string{"web"}, "token_period": 0, "token_bound_cidrs": []string{}},
		},
		"vault_quota_rate_limit": {
			path:    "sys/quotas/rate-limit/" + x.my("tf"),
			write:   map[string]any{"path": x.my("tf-kv") + "/", "rate": 1e6, "interval": 2, "block_interval": 0, "role": "", "inheritable": false},
			read:    map[string]any{"path": x.my("tf-kv") + "/", "interval": 2, "block_interval": 0, "role": "", "group_by": "ip"},
			change:  map[string]any{"path": x.my("tf-kv") + "/", "rate": 2e6, "interval": 3, "block_interval": 4},
			changed: map[string]any{"rate": 2000000, "interval": 3, "block_interval": 4},
		},
		"vault_quota_lease_count": {
			path:    "sys/quotas/lease-count/" + x.my("tf"),
			write:   map[string]any{"path": x.my("tf-kv") + "/", "max_leases": 1000000, "role": ""},
			read:    map[string]any{"path": x.my("tf-kv") + "/", "max_leases": 1000000},
			change:  map[string]any{"path": x.my("tf-kv") + "/", "max_leases": 1000001},
			changed: map[string]any{"max_leases": 1000001},
		},
		"vault_audit_request_header": {
			path:    "sys/config/auditing/request-headers/" + x.my("x-tf"),
			write:   map[string]any{"hmac": false},
			read:    map[string]any{x.my("x-tf"): map[string]any{"hmac": false}},
			change:  map[string]any{"hmac": true},
			changed: map[string]any{x.my("x-tf"): map[string]any{"hmac": true}},
		},
		"vault_identity_mfa_login_enforcement": {
			path:    "identity/mfa/login-enforcement/" + x.my("tf"),
			write:   map[string]any{"mfa_method_ids": []string{method}, "auth_method_accessors": []string{accessor}},
			read:    map[string]any{"mfa_method_ids": []string{method}, "auth_method_accessors": []string{accessor}, "auth_method_types": []string{}, "identity_group_ids": []string{}},
			change:  map[string]any{"mfa_method_ids": []string{method}, "auth_method_types": []string{"userpass"}, "auth_method_accessors": []string{}},
			changed: map[string]any{"auth_method_types": []string{"userpass"}, "auth_method_accessors": []string{}},
		},
		"vault_identity_mfa_totp": {
			path:    "identity/mfa/method/totp/" + method,
			write:   map[string]any{"issuer": "tf", "algorithm": "SHA256", "digits": 8, "key_size": 32, "period": 60, "qr_size": 250, "skew": 0, "max_validation_attempts": 4},
			read:    map[string]any{"issuer": "tf", "algorithm": "SHA256", "digits": 8, "key_size": 32, "period": 60, "qr_size": 250, "skew": 0, "max_validation_attempts": 4},
			change:  map[string]any{"issuer": "other", "algorithm": "SHA1", "digits": 6},
			changed: map[string]any{"issuer": "other", "algorithm": "SHA1", "digits": 6},
		},
		"vault_saml_auth_backend_role": {
			path:    "auth/" + x.my("tf-saml") + "/role/web",
			write:   map[string]any{"bound_subjects": []string{"*@example.com"}, "bound_subjects_type": "glob", "token_policies": []string{"web"}, "token_ttl": 600, "token_bound_cidrs": []string{"10.1.2.3"}},
			read:    map[string]any{"bound_subjects": []string{"*@example.com"}, "bound_subjects_type": "glob", "token_policies": []string{"web"}, "token_ttl": 600, "token_bound_cidrs": []string{"10.1.2.3"}},
			change:  map[string]any{"bound_subjects": []string{"ann@example.com"}, "bound_subjects_type": "string", "token_ttl": 0, "token_bound_cidrs": []string{}},
			changed: map[string]any{"bound_subjects": []string{"ann@example.com"}, "bound_subjects_type": "string", "token_ttl": 0, "token_bound_cidrs": []string{}},
		},
		"vault_cert_auth_backend_role": {
			path:    "auth/" + x.my("tf-cert") + "/certs/web",
			write:   map[string]any{"certificate": string(ca), "allowed_names": []string{"web.example"}, "token_policies": []string{"web"}, "token_ttl": 600, "token_bound_cidrs": []string{"10.1.2.3"}},
			read:    map[string]any{"certificate": string(ca), "allowed_names": []string{"web.example"}, "token_policies": []string{"web"}, "token_ttl": 600, "token_bound_cidrs": []string{"10.1.2.3"}},
			change:  map[string]any{"certificate": string(ca), "allowed_names": []string{}, "token_ttl": 1200},
			changed: map[string]any{"allowed_names": []string{}, "token_ttl": 1200},
		},
		"vault_aws_secret_backend_role": {
			path:    x.my("tf-aws") + "/roles/web",
			write:   map[string]any{"credential_type": "iam_user", "policy_arns": []string{"arn:aws:iam::aws:policy/ReadOnlyAccess"}, "iam_tags": map[string]any{"a": "b"}},
			read:    map[string]any{"credential_type": "iam_user", "policy_arns": []string{"arn:aws:iam::aws:policy/ReadOnlyAccess"}, "role_arns": []string{}, "iam_tags": map[string]any{"a": "b"}},
			change:  map[string]any{"credential_type": "assumed_role", "role_arns": []string{"arn:aws:iam::123456789012:role/web"}, "policy_arns": []string{}, "iam_tags": map[string]any{}, "default_sts_ttl": 1200},
			changed: map[string]any{"credential_type": "assumed_role", "role_arns": []string{"arn:aws:iam::123456789012:role/web"}, "policy_arns": []string{}, "default_sts_ttl": 1200},
		},
		"vault_raft_snapshot_agent_config": {
			path: "sys/storage/raft/snapshot-auto/config/" + x.my("tf"),
			write: map[string]any{
				"interval": 86400, "retain": 7, "path_prefix": "tf", "file_prefix": "vault-snapshot", "storage_type": "aws-s3",
				"aws_s3_bucket": "backups", "aws_s3_region": "eu-central-1", "aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "example",
			},
			read: map[string]any{"interval": 86400, "retain": 7, "path_prefix": "tf", "file_prefix": "vault-snapshot", "storage_type": "aws-s3", "aws_s3_bucket": "backups"},
			change: map[string]any{
				"interval": 43200, "retain": 8, "path_prefix": "tf", "file_prefix": "vault-snapshot", "storage_type": "aws-s3",
				"aws_s3_bucket": "backups", "aws_s3_region": "eu-central-1", "aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "example",
			},
			changed: map[string]any{"interval": 43200, "retain": 8},
		},
	} {
		t.Run(name, func(t *testing.T) {
			done(t)(c.write(r.path, r.write))
			fields(t, data(t)(c.read(r.path)), r.read)
			done(t)(c.write(r.path, r.change))
			fields(t, data(t)(c.read(r.path)), r.changed)
			if r.stays {
				return
			}
			done(t)(c.remove(r.path))
			if s, _ := c.read(r.path); s != nil {
				t.Errorf("%s is there after it was destroyed", r.path)
			}
		})
	}
}
