// Package cloud1ssm writes secrets to the Parameter Store of AWS Systems Manager, the destination cloud1-ssm.
//
// A name is a parameter, which has no id of its own. Its version is the number that the service counts and the time of the write: a
// parameter that is deleted and created again counts from 1 once more. Whose a parameter is says the tag coffer:sync.
//
// A new name is one call that creates or fails. The service has no call that replaces only the version that was found, so the version is
// compared just before. Tags are written before the value: when a version is current, all of its write is done.
//
// Start reading at dest in dest.go, then write.go. How calls are made and what errors become is in package cloud1.
package cloud1ssm

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1"
	"github.com/coffer-project/coffer/engines/secretsync/destination"
)

const (
	typeName = "cloud1-ssm"

	maxStandard = 4096 // bytes of a value of the tier Standard
	maxValue    = 8192 // of the others
	maxLevels   = 15
	// maxName leaves room for the ARN in front of the name, which counts against the vendor's 1011.
	maxName = 950
)

// Type is AWS Systems Manager Parameter Store.
var Type = destination.Type{
	Name:  typeName,
	Alias: "aws-ssm",
	Help: "AWS Systems Manager Parameter Store in one region of one account. The credentials need the actions ssm:PutParameter, GetParameter, DescribeParameters, " +
		"DeleteParameter, AddTagsToResource, RemoveTagsFromResource and ListTagsForResource; with kms_key_id also kms:Encrypt, Decrypt and GenerateDataKey of the key.",
	Rules: destination.Rules{
		Granularity:      destination.SecretPath,
		Template:         "vault/{{ .MountAccessor }}/{{ .SecretPath }}",
		Normalise:        normalise,
		CheckName:        checkName,
		CheckValue:       checkValue,
		MinValue:         1,
		MaxValue:         maxValue,
		MaxTags:          cloud1.MaxTags - 1,
		CheckTag:         cloud1.CheckTag,
		HasOwnerTags:     true,
		Readable:         true,
		PropagationDelay: 5 * time.Second, // calls are eventually consistent
		// Half of what the service takes of an account by default: 3 PutParameter a second, 40 GetParameter, and fewer of the rest.
		Rate: destination.Rate{Writes: 1.5, WriteBurst: 3, Reads: 10, ReadBurst: 10, Concurrency: 4},
	},
	New:  func() destination.Config { return &Config{} },
	Open: open,
}

var service = &cloud1.Service{
	Name:     "AWS Systems Manager",
	JSON:     cloud1.JSON{Signing: "ssm", Target: "AmazonSSM"},
	Wordless: []string{"PutParameter"},
	Meaning: map[cloud1.Code]cloud1.Meaning{
		notFound:                {Class: destination.Client, Code: destination.NoLocation},
		notFoundByTags:          {Class: destination.Client, Code: destination.NoLocation},
		alreadyExists:           {Class: destination.Client, Code: destination.Exists},
		versionNotFound:         {Class: destination.External, Code: destination.Recovering},
		parameterLimit:          {Class: destination.Client, Code: destination.Quota},
		versionLimit:            {Class: destination.Client, Code: destination.Quota},
		"TooManyTagsError":      {Class: destination.Client, Code: destination.Quota},
		"TooManyUpdates":        {Class: destination.External, Code: destination.Throttled},
		"InternalServerError":   {Class: destination.External, Code: destination.Unavailable},
		"HierarchyTypeMismatch": {Class: destination.Client, Code: destination.BadRequest},
	},
	Advice: func(call string, code cloud1.Code) string {
		switch code {
		case parameterLimit:
			return "the account has as many parameters as AWS takes, 10000 of the tier Standard: set tier to Advanced or Intelligent-Tiering, or delete some"
		case versionLimit:
			return "the parameter has 100 versions, and AWS does not remove the oldest because a client has labelled it: move that label to a newer version"
		case invalidKey:
			return "the key of KMS cannot be used: see kms_key_id, whether it is enabled, and whether the credentials may use it"
		case "ParameterPatternMismatch":
			return "the value does not match the pattern that the parameter has at AWS (AllowedPattern): change either"
		case "TooManyUpdates":
			return "another client is changing the parameter"
		}
		return ""
	},
}

const (
	notFound        = cloud1.Code("ParameterNotFound")
	notFoundByTags  = cloud1.Code("InvalidResourceId")
	versionNotFound = cloud1.Code("ParameterVersionNotFound")
	alreadyExists   = cloud1.Code("ParameterAlreadyExists")
	parameterLimit  = cloud1.Code("ParameterLimitExceeded")
	versionLimit    = cloud1.Code("ParameterMaxVersionLimitExceeded")
	invalidKey      = cloud1.Code("InvalidKeyId")
)

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
	return &dest{Session: s, config: *cfg}, nil
}

func legalInName(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/_.-", r)
}

// normalise puts a dash for whatever the service has no room for, and a slash before a path. A name that is too long stays so: cut, it
// might be that of another parameter.
func normalise(name string) string {
	name = strings.Map(func(r rune) rune {
		if legalInName(r) {
			return r
		}
		return '-'
	}, name)
	if strings.Contains(name, "/") && !strings.HasPrefix(name, "/") {
		name = "/" + name
	}
	return name
}

func checkName(name string) string {
	bare := strings.TrimPrefix(name, "/")
	first := strings.ToLower(bare)
	switch {
	case bare == "":
		return "a name has at least 1 character"
	case strings.ContainsFunc(name, func(r rune) bool { return !legalInName(r) }):
		return "a name has only letters A-Z and a-z, digits and / _ . -"
	case len(name) > maxName:
		return fmt.Sprintf("a name has at most %d characters, this one has %d", maxName, len(name))
	case strings.Contains(bare, "/") && bare == name:
		return "a name with / begins with /"
	case strings.Contains(bare, "//") || strings.HasPrefix(bare, "/") || strings.HasSuffix(bare, "/"):
		return "a name has something between one / and the next, and does not end in /"
	case strings.Count(bare, "/") >= maxLevels:
		return fmt.Sprintf("a name has at most %d levels, this one has %d", maxLevels, strings.Count(bare, "/")+1)
	case strings.HasPrefix(first, "aws") || strings.HasPrefix(first, "ssm"):
		return "a name does not begin with aws or ssm, which AWS keeps for itself"
	}
	return ""
}

// nested is what the service takes for a reference to another parameter.
var nested = regexp.MustCompile(`(?s)\{\{.*\}\}`)

func checkValue(value []byte) string {
	switch {
	case !utf8.Valid(value):
		return "AWS takes only texts in a parameter, and the value is not UTF-8"
	case nested.Match(value):
		return "AWS takes no value with {{ and }} in a parameter, which would refer to another one"
	}
	return ""
}
