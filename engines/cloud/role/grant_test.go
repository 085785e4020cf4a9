package role

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/engines/cloud/aws"
)

var (
	userRole        = Role{Types: []string{IAMUser}, PolicyDocument: document}
	oneRole         = Role{Types: []string{AssumedRole}, RoleARNs: []string{devRole}}
	twoRoles        = Role{Types: []string{AssumedRole}, RoleARNs: []string{devRole, opsRole}}
	federatedRole   = Role{Types: []string{FederationToken}, PolicyDocument: document}
	sessionRole     = Role{Types: []string{SessionToken}}
	legacyUser      = Role{Types: []string{IAMUser, FederationToken}, Legacy: "policy", PolicyDocument: document}
	legacyPolicyARN = Role{Types: []string{IAMUser}, Legacy: "arn", PolicyARNs: []string{readOnly}}
	legacyRoleARN   = Role{Types: []string{AssumedRole}, Legacy: "arn", RoleARNs: []string{devRole}}
)

func TestTypeOfCredentialsByPath(t *testing.T) {
	for _, tt := range []struct {
		name       string
		role       Role
		creds, sts string // "": refused
	}{
		{"iam_user", userRole, IAMUser, IAMUser},
		{"assumed_role", oneRole, AssumedRole, AssumedRole},
		{"federation_token", federatedRole, FederationToken, FederationToken},
		{"session_token", sessionRole, SessionToken, SessionToken},
		{"legacy policy", legacyUser, IAMUser, FederationToken},
		{"legacy ARN of a policy", legacyPolicyARN, IAMUser, ""},
		{"legacy ARN of a role", legacyRoleARN, "", AssumedRole},
	} {
		for path, want := range map[string]string{"creds": tt.creds, "sts": tt.sts} {
			g, err := tt.role.Grant(Wish{Path: path}, 0)
			if g.Type != want || (err == nil) != (want != "") {
				t.Errorf("%s at %s = %q, error %v, want %q", tt.name, path, g.Type, err, want)
			}
			if want == "" && !isInvalid(err) {
				t.Errorf("%s at %s: error %v, want one of KindInvalid", tt.name, path, err)
			}
		}
	}
}

func isInvalid(err error) bool {
	var e *engines.Error
	return errors.As(err, &e) && e.Kind == engines.KindInvalid
}

func TestRoleARNMustMatchAnAllowedOneAndIsOptionalIfThereIsOne(t *testing.T) {
	for _, tt := range []struct {
		name        string
		role        Role
		asked, want string // "": refused
	}{
		{"the only one", oneRole, "", devRole},
		{"the only one by name", oneRole, devRole, devRole},
		{"one of several", twoRoles, opsRole, opsRole},
		{"none of several", twoRoles, "", ""},
		{"one that is not allowed", oneRole, opsRole, ""},
		{"one in another case", oneRole, strings.ToUpper(devRole), ""},
		{"one of a role that assumes none", userRole, devRole, ""},
		{"one of a federation", federatedRole, devRole, ""},
	} {
		g, err := tt.role.Grant(Wish{Path: "sts", RoleARN: tt.asked}, 0)
		switch {
		case g.RoleARN != tt.want || (err == nil) != (tt.want != ""):
			t.Errorf("%s = %q, error %v, want %q", tt.name, g.RoleARN, err, tt.want)
		case err != nil && (!isInvalid(err) || !strings.Contains(err.Error(), `field "role_arn"`)):
			t.Errorf("%s: error %v does not name role_arn", tt.name, err)
		}
	}
}

func TestSTSTTL(t *testing.T) {
	ttls := func(kind Role, def, most time.Duration) Role {
		kind.DefaultSTSTTL, kind.MaxSTSTTL = def, most
		return kind
	}
	chained := oneRole
	chained.AssumeRoleARNs = []string{opsRole}
	const day, minute, hour = 24 * time.Hour, time.Minute, time.Hour
	for _, tt := range []struct {
		name            string
		role            Role
		asked, mountMax time.Duration
		want            time.Duration // 0: refused
	}{
		{"3600 seconds by default", oneRole, 0, 768 * hour, hour},
		{"the role's default", ttls(oneRole, 30*minute, 0), 0, 768 * hour, 30 * minute},
		{"what is asked for", ttls(oneRole, 30*minute, 0), 45 * minute, 768 * hour, 45 * minute},
		{"cut to max_sts_ttl", ttls(oneRole, 0, 2*hour), 3 * hour, 768 * hour, 2 * hour},
		{"the usual hour cut to max_sts_ttl", ttls(oneRole, 0, 20*minute), 0, 768 * hour, 20 * minute},
		{"max_sts_ttl instead of the mount's maximum", ttls(oneRole, 0, 2*hour), 2 * hour, hour, 2 * hour},
		{"cut to the mount's maximum", oneRole, 3 * hour, 2 * hour, 2 * hour},
		{"cut to the provider's for assumed_role", oneRole, day, 768 * hour, 12 * hour},
		{"cut to the provider's for roles through roles", chained, 2 * hour, 768 * hour, hour},
		{"cut to the provider's for federation_token", federatedRole, 2 * day, 768 * hour, 36 * hour},
		{"cut to the provider's for session_token", sessionRole, 2 * day, 768 * hour, 36 * hour},
		{"no mount's maximum", oneRole, 2 * hour, 0, 2 * hour},
		{"whole seconds", oneRole, hour + 1, 0, hour},
		{"the shortest", oneRole, 15 * minute, 0, 15 * minute},
		{"shorter than the provider's", oneRole, 15*minute - 1, 0, 0},
		{"a mount's maximum that is too short", oneRole, 0, minute, 0},
	} {
		g, err := tt.role.Grant(Wish{Path: "sts", TTL: tt.asked}, tt.mountMax)
		switch {
		case g.TTL != tt.want || (err == nil) != (tt.want != 0):
			t.Errorf("%s = %v, error %v, want %v", tt.name, g.TTL, err, tt.want)
		case err != nil && (!isInvalid(err) || !strings.Contains(err.Error(), `field "ttl"`)):
			t.Errorf("%s: error %v does not name ttl", tt.name, err)
		}
	}
}

func TestTTLIsNotForUsers(t *testing.T) {
	g, err := userRole.Grant(Wish{Path: "creds", TTL: time.Minute, SessionName: "abc"}, time.Minute)
	if err != nil || g.TTL != 0 || g.SessionName != "" || len(g.Warnings) != 2 {
		t.Errorf("grant = %+v, error %v, want two warnings and neither ttl nor session", g, err)
	}
}

func TestRoleSessionNameIsCutTo64Characters(t *testing.T) {
	own := oneRole
	own.SessionName = "role's"
	for _, tt := range []struct {
		name        string
		role        Role
		asked, want string
		warnings    int
	}{
		{"none", oneRole, "", "", 0},
		{"as it is", oneRole, "Az09+=,.@_-", "Az09+=,.@_-", 0},
		{"64 characters", oneRole, strings.Repeat("a", 64), strings.Repeat("a", 64), 0},
		{"65 characters", oneRole, strings.Repeat("a", 65), strings.Repeat("a", 64), 0},
		{"many characters of several bytes", oneRole, strings.Repeat("ä", 65), strings.Repeat("_", 64), 0},
		{"other characters", oneRole, "a b/c:d\n€", "a_b_c_d__", 0},
		{"the role's own", own, "", "role_s", 0},
		{"the role's own against another", own, "other", "role_s", 1},
	} {
		g, err := tt.role.Grant(Wish{Path: "sts", SessionName: tt.asked}, 0)
		if err != nil || g.SessionName != tt.want || len(g.Warnings) != tt.warnings {
			t.Errorf("%s = %q, warnings %q, error %v, want %q and %d warnings", tt.name, g.SessionName, g.Warnings, err, tt.want, tt.warnings)
		}
	}
	if _, err := oneRole.Grant(Wish{Path: "sts", SessionName: "a"}, 0); !isInvalid(err) || !strings.Contains(err.Error(), `"role_session_name"`) {
		t.Errorf("a name of one character: error %v", err)
	}
}

func TestMFACodes(t *testing.T) {
	device := sessionRole
	device.MFASerial = "GAHT12345678"
	for _, tt := range []struct {
		name string
		role Role
		code string
		want *aws.MFA // nil: refused
	}{
		{"neither", sessionRole, "", &aws.MFA{}},
		{"both", device, "012345", &aws.MFA{Serial: "GAHT12345678", Code: "012345"}},
		{"no code", device, "", nil},
		{"a short code", device, "12345", nil},
		{"letters", device, "12345a", nil},
		{"no device", sessionRole, "012345", nil},
		{"another type", userRole, "012345", nil},
	} {
		g, err := tt.role.Grant(Wish{Path: "sts", MFACode: tt.code}, 0)
		switch {
		case (err == nil) != (tt.want != nil) || tt.want != nil && g.MFA != *tt.want:
			t.Errorf("%s = %+v, error %v, want %+v", tt.name, g.MFA, err, tt.want)
		case err != nil && (!isInvalid(err) || !strings.Contains(err.Error(), `field "mfa_code"`) || tt.code != "" && strings.Contains(err.Error(), tt.code)):
			t.Errorf("%s: error %v", tt.name, err)
		}
	}
}

func TestRefusedWishesListEverything(t *testing.T) {
	_, err := twoRoles.Grant(Wish{Path: "sts", SessionName: "a", TTL: time.Minute, MFACode: "1"}, 0)
	if err == nil {
		t.Fatal("accepted")
	}
	if got, want := fieldsOf(err.Error()), []string{"mfa_code", "role_arn", "role_session_name", "ttl"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v names %v, want %v", err, got, want)
	}
}
