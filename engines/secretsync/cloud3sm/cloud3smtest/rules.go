package cloud3smtest

import (
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
	"unicode/utf8"

	"cloud.google.com/go/secretmanager/apiv1/secretmanagerpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Quote is a rule in the vendor's words.
type Quote struct {
	Schema, Field string // of the discovery document; or a method, with its parameter
	Words         string
}

// Quotes are the words that the rules here follow.
var Quotes = map[string]Quote{
	"ids": {"projects.secrets.create", "secretId",
		"A secret ID is a string with a maximum length of 255 characters and can contain uppercase and lowercase letters, numerals, and the hyphen (`-`) and underscore (`_`) characters."},
	"ids are unique":    {"projects.secrets.create", "secretId", "This must be unique within the project."},
	"size":              {"SecretPayload", "data", "Must be no larger than 64KiB."},
	"checksum":          {"SecretPayload", "dataCrc32c", "SecretManagerService will verify the integrity of the received data on SecretManagerService.AddSecretVersion calls using the crc32c checksum"},
	"checksum is kept":  {"SecretPayload", "dataCrc32c", "store it to include in future SecretManagerService.AccessSecretVersion responses"},
	"label keys":        {"Secret", "labels", "Label keys must be between 1 and 63 characters long, have a UTF-8 encoding of maximum 128 bytes"},
	"label values":      {"Secret", "labels", "Label values must be between 0 and 63 characters long, have a UTF-8 encoding of maximum 128 bytes"},
	"label letters":     {"Secret", "labels", "`[\\p{Ll}\\p{Lo}\\p{N}_-]{0,63}`"},
	"labels":            {"Secret", "labels", "No more than 64 labels can be assigned to a given resource."},
	"annotation keys":   {"Secret", "annotations", "Annotation keys must be between 1 and 63 characters long, have a UTF-8 encoding of maximum 128 bytes, begin and end with an alphanumeric character ([a-z0-9A-Z]), and may have dashes (-), underscores (_), dots (.), and alphanumerics in between these symbols."},
	"annotations":       {"Secret", "annotations", "The total size of annotation keys and values must be less than 16KiB."},
	"replication":       {"Secret", "replication", "The replication policy cannot be changed after the Secret has been created."},
	"replicas":          {"UserManaged", "replicas", "Cannot be empty."},
	"numbers":           {"SecretVersion", "name", "SecretVersion IDs in a Secret start at 1 and are incremented for each subsequent version of the secret."},
	"latest":            {"projects.secrets.versions.access", "name", "is an alias to the most recently created SecretVersion."},
	"etags of deletes":  {"projects.secrets.delete", "etag", "The request succeeds if it matches the etag of the currently stored secret object. If the etag is omitted, the request succeeds."},
	"etags of versions": {"DestroySecretVersionRequest", "etag", "The request succeeds if it matches the etag of the currently stored secret version object. If the etag is omitted, the request succeeds."},
	"order":             {"ListSecretsResponse", "secrets", "sorted in reverse by create_time (newest first)"},
	"page sizes":        {"projects.secrets.list", "pageSize", "If set to 0, the server decides the number of results to return."},
	"destroyed":         {"SecretVersion", "destroyTime", "Only present if state is DESTROYED."},
}

// Permissions are those that a service account needs for all that a destination does.
var Permissions = []string{
	"secretmanager.secrets.create", "secretmanager.secrets.get", "secretmanager.secrets.list", "secretmanager.secrets.update",
	"secretmanager.secrets.delete", "secretmanager.versions.add", "secretmanager.versions.access", "secretmanager.versions.get",
	"secretmanager.versions.destroy",
}

// methods of the service that there are: the permission they need, and the field by which they are routed.
var methods = map[string]struct {
	permission string
	route      string
	writes     bool
}{
	"CreateSecret":         {"secretmanager.secrets.create", "parent", true},
	"GetSecret":            {"secretmanager.secrets.get", "name", false},
	"ListSecrets":          {"secretmanager.secrets.list", "parent", false},
	"UpdateSecret":         {"secretmanager.secrets.update", "secret.name", true},
	"DeleteSecret":         {"secretmanager.secrets.delete", "name", true},
	"AddSecretVersion":     {"secretmanager.versions.add", "parent", true},
	"AccessSecretVersion":  {"secretmanager.versions.access", "name", false},
	"GetSecretVersion":     {"secretmanager.versions.get", "name", false},
	"DestroySecretVersion": {"secretmanager.versions.destroy", "name", true},
	"TestIamPermissions":   {"", "resource", false},
}

var (
	secretID      = regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`)
	locationID    = regexp.MustCompile(`^[a-z]+-[a-z]+[0-9]+$`)
	labelKey      = regexp.MustCompile(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]*$`)
	labelValue    = regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}_-]*$`)
	annotationKey = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
)

const (
	maxPayload     = 64 << 10
	maxLabels      = 64
	maxAnnotations = 16 << 10
	maxLabel       = 63 // characters
	maxUTF8        = 128
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) *int64 {
	sum := int64(crc32.Checksum(b, castagnoli))
	return &sum
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return invalid("Too many labels.")
	}
	for key, value := range labels {
		if !labelKey.MatchString(key) || tooLong(key) || !labelValue.MatchString(value) || tooLong(value) {
			return invalid("Invalid label.")
		}
	}
	return nil
}

func tooLong(label string) bool {
	return utf8.RuneCountInString(label) > maxLabel || len(label) > maxUTF8
}

func checkAnnotations(annotations map[string]string) error {
	total := 0
	for key, value := range annotations {
		if !annotationKey.MatchString(key) || !utf8.ValidString(value) {
			return invalid("Invalid annotation.")
		}
		total += len(key) + len(value)
	}
	if total >= maxAnnotations {
		return invalid("The annotations are too large.")
	}
	return nil
}

// checkKey checks a key, which has to be in the location of the replica, or in "global" for automatic replication.
func checkKey(e *secretmanagerpb.CustomerManagedEncryption, location string) error {
	parts := strings.Split(e.GetKmsKeyName(), "/")
	if e != nil && (len(parts) != 8 || parts[0] != "projects" || parts[2] != "locations" || parts[3] != location || parts[4] != "keyRings" || parts[6] != "cryptoKeys") {
		return invalid("Invalid KMS key, or one of another location.")
	}
	return nil
}

func checkReplication(r *secretmanagerpb.Replication) error {
	switch r := r.GetReplication().(type) {
	case *secretmanagerpb.Replication_Automatic_:
		return checkKey(r.Automatic.GetCustomerManagedEncryption(), "global")
	case *secretmanagerpb.Replication_UserManaged_:
		seen := map[string]bool{}
		for _, replica := range r.UserManaged.GetReplicas() {
			if !locationID.MatchString(replica.GetLocation()) || seen[replica.GetLocation()] {
				return invalid("Invalid or repeated location.")
			}
			seen[replica.GetLocation()] = true
			if err := checkKey(replica.GetCustomerManagedEncryption(), replica.GetLocation()); err != nil {
				return err
			}
		}
		if len(seen) == 0 {
			return invalid("Field [secret.replication.user_managed.replicas] is required.")
		}
		return nil
	}
	return invalid("Field [secret.replication] is required.")
}

// split takes a resource name apart: "projects/p", then perhaps "secrets/s", then perhaps "versions/v".
func split(path string) (secret, version string, err error) {
	parts := strings.Split(path, "/")
	kinds := []string{"projects", "secrets", "versions"}
	if len(parts)%2 != 0 || len(parts) > 2*len(kinds) {
		return "", "", invalid("The resource name is malformed.")
	}
	for i := 0; i < len(parts); i += 2 {
		if parts[i] != kinds[i/2] || parts[i+1] == "" {
			return "", "", invalid("The resource name is malformed.")
		}
	}
	if parts[1] != Project && parts[1] != Number {
		return "", "", withReason(codes.PermissionDenied, "CONSUMER_INVALID", fmt.Sprintf("Permission denied on resource project %s.", parts[1]))
	}
	if len(parts) > 2 {
		if secret = parts[3]; !secretID.MatchString(secret) {
			return "", "", invalid("The secret id is malformed.")
		}
	}
	if len(parts) > 4 {
		version = parts[5]
	}
	return secret, version, nil
}
