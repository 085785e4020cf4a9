// Package cloud1sm writes secrets to AWS Secrets Manager, the destination cloud1-sm.
//
// A name is a secret, its ID the ARN, which a new secret of the same name would not have, and its version the one with the
// staging label AWSCURRENT. Whose a secret is says the tag coffer:sync.
//
// A new name is one call that creates or fails. A value is replaced in two: the first stores a version that no client reads yet,
// under the label COFFER and with Item.Token as its id, the second moves AWSCURRENT to it from the version that was found,
// which the service rejects if another client has written meanwhile. So nothing is overwritten unseen, and an attempt that was
// made before makes no second version. Tags are written before that: when a version is current, all of its write is done.
//
// Start reading at dest in dest.go, then write.go. How requests are made and what errors become is in package cloud1.
package cloud1sm

import (
	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/smithy-go/logging"

	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	typeName = "cloud1-sm"

	maxValueBytes = 65536
	maxName       = 512
)

// Type is AWS Secrets Manager.
var Type = destination.Type{
	Name:  typeName,
	Alias: "aws-sm",
	Help: "AWS Secrets Manager in one region of one account. The credentials need the actions CreateSecret, DescribeSecret, GetSecretValue, " +
		"PutSecretValue, UpdateSecretVersionStage, TagResource, UntagResource, DeleteSecret, RestoreSecret and ListSecrets; with kms_key_id also UpdateSecret, with replica_regions ReplicateSecretToRegions and RemoveRegionsFromReplication.",
	Rules: destination.Rules{
		Granularity:      destination.SecretPath,
		Template:         "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
		Normalise:        normalise,
		CheckName:        checkName,
		MaxValue:         maxValueBytes,
		MaxTags:          cloud1.MaxTags - 1,
		CheckTag:         cloud1.CheckTag,
		HasOwnerTags:     true,
		Readable:         true,
		PropagationDelay: 5 * time.Second, // calls are eventually consistent; most are within a second
		// Of about 100 versions that a secret has, none younger than a day is removed, nor one that a client has labelled.
		WritesPerDay: 90,
		// Half of what the service takes of an account: 50 a second of each sort of write, and far more reads.
		Rate: destination.Rate{Writes: 25, WriteBurst: 25, Reads: 100, ReadBurst: 100, Concurrency: 8},
	},
	New:  func() destination.Config { return &Config{} },
	Open: open,
}

func legalInName(r rune) bool {
	return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/_+=.@-", r))
}

// normalise puts a dash for whatever the service has no room for. A name that is too long stays so: cut, it might be that of
// another secret.
func normalise(name string) string {
	return strings.Map(func(r rune) rune {
		if legalInName(r) {
			return r
		}
		return '-'
	}, name)
}

// checkName holds a name against what the service takes. It advises against names that end in a dash and six characters, such
// as "my-secret", because an ARN without its end would be mistaken for one with it; here every ARN is whole.
func checkName(name string) string {
	switch {
	case name == "":
		return "a name has at least 1 character"
	case strings.ContainsFunc(name, func(r rune) bool { return !legalInName(r) }):
		return "a name has only letters A-Z and a-z, digits and / _ + = . @ -"
	case len(name) > maxName:
		return fmt.Sprintf("a name has at most %d characters, this one has %d", maxName, len(name))
	}
	return ""
}

var service = &cloud1.Service{
	Name:     "AWS Secrets Manager",
	Wordless: []string{"CreateSecret", "PutSecretValue"},
	Advice: func(call string, code cloud1.Code) string {
		if code == cloud1.LimitExceeded && call == "PutSecretValue" {
			return "the secret has as many versions as AWS keeps, about 100, and AWS removes none of the last 24 hours: write it less often, or wait for up to a day"
		}
		return ""
	},
}

// open makes a destination.
func open(c destination.Config, env destination.Env) (destination.Destination, error) {
	cfg, ok := c.(*Config)
	if !ok {
		return nil, destination.InternalError("a configuration of another type")
	}
	s, err := cloud1.Open(cfg.Account, service, env)
	if err != nil {
		return nil, err
	}
	return &dest{Session: s, config: *cfg, api: secretsmanager.New(secretsmanager.Options{
		Region: s.Region, BaseEndpoint: s.Endpoint, HTTPClient: s.HTTPClient, Retryer: sdk.NopRetryer{},
		Credentials: s.Credentials, APIOptions: s.APIOptions, Logger: logging.Nop{},
	})}, nil
}
