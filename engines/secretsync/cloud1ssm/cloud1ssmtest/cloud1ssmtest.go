// Package cloud1ssmtest is AWS Systems Manager Parameter Store for tests (see package cloud1test):
//
//	s := cloud1ssmtest.New(t)
//	accessKey, secretKey := s.Root() // of a user who may do everything
//	// the endpoint is s.URL, the region s.Region
//
// It knows parameters with versions, labels, tiers, keys and tags, and rejects what the vendor rejects: taken names, names of too many
// levels, values too long for their tier or with references, other types, tags of an overwriting call. Pages may be empty.
package cloud1ssmtest

import (
	_ "embed"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coffer-project/coffer/engines/secretsync/cloud1/cloud1test"
)

const (
	ownKey      = "alias/aws/ssm"
	maxTags     = 50
	maxVersions = 100
	maxStandard = 4096
	maxAdvanced = 8192
	invalid     = "ValidationException"
)

// Server is the service in one region of one account. Safe for concurrent use.
type Server struct {
	*cloud1test.Server

	testing    testing.TB
	pageSize   int
	parameters []*parameter // in order of creation
	last       time.Time    // of a write: no two are at the same time
	sealed     bool
	full       bool
}

// Call is one request that was received.
type Call = cloud1test.Call

type parameter struct {
	Parameter
	label int // the version that a client has labelled; 0: none
}

// Parameter is a parameter as a test sees it.
type Parameter struct {
	Name, Value, Type, Tier, KeyID string
	Tags                           map[string]string
	Version                        int
	Modified                       map[int]time.Time // when each version was written that is kept
}

//go:embed testdata/ssm.json
var description []byte

// loadModel decodes the model once in a process.
var loadModel = sync.OnceValues(func() (*cloud1test.Model, error) { return cloud1test.ParseModel(description) })

type object = map[string]any

// request is one, while it is carried out.
type request struct {
	*cloud1test.Request
	s *Server
}

var actions = map[string]func(*request) (any, *cloud1test.Refusal){
	"PutParameter":           (*request).put,
	"GetParameter":           (*request).get,
	"DescribeParameters":     (*request).describe,
	"DeleteParameter":        (*request).remove,
	"AddTagsToResource":      (*request).tag,
	"RemoveTagsFromResource": (*request).untag,
	"ListTagsForResource":    (*request).listTags,
}

// New starts a Server that lives as long as the test, with pages of so many parameters.
func New(t testing.TB, pageSize int) *Server {
	t.Helper()
	m, err := loadModel()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{testing: t, pageSize: pageSize}
	s.Server = cloud1test.Start(t, cloud1test.Service{
		Name: "cloud1ssmtest", Prefix: "AmazonSSM", Signing: "ssm", Model: m,
		ID: func(r *cloud1test.Request) string { return r.Text("Name") + r.Text("ResourceId") },
		Do: func(r *cloud1test.Request) (any, *cloud1test.Refusal, bool) {
			do, known := actions[r.Action]
			if !known {
				return nil, nil, false
			}
			out, rejected := do(&request{r, s})
			return out, rejected, true
		},
	})
	return s
}

func (s *Server) find(name string) *parameter {
	for _, p := range s.parameters {
		if p.Name == name {
			return p
		}
	}
	return nil
}

var (
	legalName = regexp.MustCompile(`\A(/[A-Za-z0-9_.-]+)+\z|\A[A-Za-z0-9_.-]+\z`)
	reserved  = regexp.MustCompile(`(?i)\A/?(aws|ssm)`)
	nested    = regexp.MustCompile(`(?s)\{\{.*\}\}`)
)

func (r *request) checkName(name string) *cloud1test.Refusal {
	arn := fmt.Sprintf("arn:aws:ssm:%s:%s:parameter/", r.s.Region, r.s.Account())
	switch {
	case !legalName.MatchString(name) || reserved.MatchString(name):
		return cloud1test.Reject(invalid, "Parameter name must be a fully qualified name, and can't be prefixed with \"aws\" or \"ssm\" (case-insensitive).")
	case len(arn)+len(strings.TrimPrefix(name, "/")) > 1011:
		return cloud1test.Reject(invalid, "Parameter name is too long.")
	case strings.Count(name, "/") > 15:
		return cloud1test.Reject("HierarchyLevelLimitExceededException", "Hierarchy depth is limited to 15 levels.")
	}
	return nil
}

// tier returns the tier that a value gets, of a parameter that had another, "" if it is new.
func (r *request) tier(had, value string) (string, *cloud1test.Refusal) {
	tier := r.Text("Tier")
	switch {
	case tier == "": // the account's default
		tier = "Standard"
		if had != "" {
			tier = had
		}
	case tier == "Intelligent-Tiering":
		tier = "Standard"
		if had == "Advanced" || len(value) > maxStandard {
			tier = "Advanced"
		}
	case tier == "Standard" && had == "Advanced":
		return "", cloud1test.Reject(invalid, "This parameter uses the advanced-parameter tier. You can't downgrade a parameter from the advanced-parameter tier to the standard-parameter tier.")
	}
	most := maxStandard
	if tier == "Advanced" {
		most = maxAdvanced
	}
	if len(value) > most {
		return "", cloud1test.Reject(invalid, "%s tier parameters support a maximum parameter value of %d characters.", tier, most)
	}
	return tier, nil
}

func (r *request) put() (any, *cloud1test.Refusal) {
	name, value, kind, key, overwrite := r.Text("Name"), r.Text("Value"), r.Text("Type"), r.Text("KeyId"), r.Yes("Overwrite")
	if rejected := r.checkName(name); rejected != nil {
		return nil, rejected
	}
	p := r.s.find(name)
	tags, rejected := r.Tags(invalid)
	switch {
	case rejected != nil:
		return nil, rejected
	case value == "" || !utf8.ValidString(value):
		return nil, cloud1test.Reject(invalid, "Value %q at 'value' failed to satisfy constraint: Member must have length greater than or equal to 1.", value)
	case nested.MatchString(value):
		return nil, cloud1test.Reject(invalid, "Parameter value can't nest another parameter. Do not use \"{{}}\" in the value: %s", value)
	case p != nil && !overwrite:
		return nil, cloud1test.Reject("ParameterAlreadyExists", "The parameter already exists. To overwrite this value, set the overwrite option in the request to true.")
	case overwrite && len(tags) > 0:
		return nil, cloud1test.Reject(invalid, "Invalid request: tags and overwrite can't be used together.")
	case p == nil && kind == "":
		return nil, cloud1test.Reject(invalid, "A parameter type is required when you create a parameter.")
	case p != nil && kind != "" && kind != p.Type:
		return nil, cloud1test.Reject("HierarchyTypeMismatchException", "Can't change the type of %s.", name)
	case key != "" && kind != "SecureString":
		return nil, cloud1test.Reject(invalid, "KeyId is required for SecureString type parameter only.")
	case strings.Contains(key, "disabled"):
		return nil, cloud1test.Reject("InvalidKeyId", "%s is disabled.", key)
	case len(tags) > maxTags:
		return nil, cloud1test.Reject(invalid, "A parameter has at most %d tags.", maxTags)
	case p == nil && r.s.full:
		return nil, cloud1test.Reject("ParameterLimitExceeded", "You have exceeded the number of parameters for this account.")
	}
	had := ""
	if p != nil {
		had = p.Tier
	}
	tier, rejected := r.tier(had, value)
	if rejected != nil {
		return nil, rejected
	}
	if p != nil && p.label > 0 && p.Version-p.label+1 >= maxVersions {
		return nil, cloud1test.Reject("ParameterMaxVersionLimitExceeded", "Version %d, the oldest version, can't be deleted because it has a label associated with it.", p.label)
	}
	if p == nil {
		p = &parameter{Parameter: Parameter{Name: name, Type: kind, Tags: tags, Modified: map[int]time.Time{}}}
		r.s.parameters = append(r.s.parameters, p)
	}
	if p.Type == "SecureString" && key == "" {
		key = ownKey
	}
	p.Value, p.Tier, p.KeyID = value, tier, key
	r.s.write(p, r.Now)
	return object{"Version": p.Version, "Tier": tier}, nil
}

// write counts a version, and forgets the oldest if there are too many.
func (s *Server) write(p *parameter, now time.Time) {
	if s.last = s.last.Add(time.Millisecond); now.After(s.last) {
		s.last = now
	}
	p.Version++
	p.Modified[p.Version] = s.last
	delete(p.Modified, p.Version-maxVersions)
}

func seconds(t time.Time) float64 { return math.Round(float64(t.UnixMilli())) / 1000 }

func (s *Server) arn(p *parameter) string {
	return fmt.Sprintf("arn:aws:ssm:%s:%s:parameter/%s", s.Region, s.Account(), strings.TrimPrefix(p.Name, "/"))
}

func (r *request) get() (any, *cloud1test.Refusal) {
	name, selector, selected := strings.Cut(r.Text("Name"), ":")
	p := r.s.find(name)
	if p == nil {
		return nil, cloud1test.Reject("ParameterNotFound", "")
	}
	number := p.Version
	if selected {
		number, _ = strconv.Atoi(selector)
	}
	at, kept := p.Modified[number]
	if !kept {
		return nil, cloud1test.Reject("ParameterVersionNotFound", "Systems Manager could not find version %s of %s.", selector, name)
	}
	value := p.Value
	if p.Type == "SecureString" || number != p.Version {
		value = "AQICAHi..."
	}
	if r.Yes("WithDecryption") {
		if r.s.sealed {
			return nil, cloud1test.Reject("AccessDeniedException", "User: root-user is not authorized to perform: kms:Decrypt on resource: %s", p.KeyID)
		}
		value = p.Value
	}
	return object{"Parameter": object{
		"Name": name, "Type": p.Type, "Value": value, "Version": number, "LastModifiedDate": seconds(at), "ARN": r.s.arn(p), "DataType": "text",
	}}, nil
}

// describe scans a page of parameters, and returns those that the filter takes.
func (r *request) describe() (any, *cloud1test.Refusal) {
	names, after := []string(nil), 0
	filters, _ := r.In["ParameterFilters"].([]any)
	for _, f := range filters {
		filter, _ := f.(object)
		if filter["Key"] != "Name" || filter["Option"] != "Equals" {
			return nil, cloud1test.Reject("InvalidFilterOption", "cloud1ssmtest: there is no such filter here")
		}
		for _, name := range filter["Values"].([]any) {
			names = append(names, name.(string))
		}
	}
	if token := r.Text("NextToken"); token != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(token, "after-"))
		if err != nil {
			return nil, cloud1test.Reject("InvalidNextToken", "The specified token isn't valid.")
		}
		after = n
	}
	size := r.s.pageSize
	if n := r.Number("MaxResults"); n > 0 {
		size = min(size, n)
	}
	end := min(after+size, len(r.s.parameters))
	page, out := []object{}, object{}
	for _, p := range r.s.parameters[min(after, end):end] {
		if names != nil && !slices.Contains(names, p.Name) {
			continue
		}
		is := object{
			"Name": p.Name, "ARN": r.s.arn(p), "Type": p.Type, "Version": p.Version, "Tier": p.Tier, "DataType": "text", "Policies": []any{},
			"LastModifiedDate": seconds(p.Modified[p.Version]), "LastModifiedUser": "arn:aws:iam::" + r.s.Account() + ":user/root-user",
		}
		if p.KeyID != "" {
			is["KeyId"] = p.KeyID
		}
		page = append(page, is)
	}
	if end < len(r.s.parameters) {
		out["NextToken"] = fmt.Sprintf("after-%d", end)
	}
	out["Parameters"] = page
	return out, nil
}

func (r *request) remove() (any, *cloud1test.Refusal) {
	p := r.s.find(r.Text("Name"))
	if p == nil {
		return nil, cloud1test.Reject("ParameterNotFound", "")
	}
	r.s.drop(p)
	return object{}, nil
}

func (s *Server) drop(p *parameter) {
	s.parameters = slices.DeleteFunc(s.parameters, func(o *parameter) bool { return o == p })
}

// resource returns the parameter that a call on tags is about.
func (r *request) resource() (*parameter, *cloud1test.Refusal) {
	if r.Text("ResourceType") != "Parameter" {
		return nil, cloud1test.Reject("InvalidResourceType", "")
	}
	if p := r.s.find(r.Text("ResourceId")); p != nil {
		return p, nil
	}
	return nil, cloud1test.Reject("InvalidResourceId", "The resource ID is not valid.")
}

func (r *request) tag() (any, *cloud1test.Refusal) {
	p, rejected := r.resource()
	if rejected != nil {
		return nil, rejected
	}
	tags, rejected := r.Tags(invalid)
	if rejected != nil {
		return nil, rejected
	}
	all := maps.Clone(p.Tags)
	maps.Copy(all, tags)
	if len(all) > maxTags {
		return nil, cloud1test.Reject("TooManyTagsError", "The Targets parameter includes too many tags.")
	}
	p.Tags = all
	return object{}, nil
}

func (r *request) untag() (any, *cloud1test.Refusal) {
	p, rejected := r.resource()
	if rejected != nil {
		return nil, rejected
	}
	for _, key := range r.Texts("TagKeys") {
		delete(p.Tags, key)
	}
	return object{}, nil
}

func (r *request) listTags() (any, *cloud1test.Refusal) {
	p, rejected := r.resource()
	if rejected != nil {
		return nil, rejected
	}
	list := []object{}
	for _, key := range slices.Sorted(maps.Keys(p.Tags)) {
		list = append(list, object{"Key": key, "Value": p.Tags[key]})
	}
	return object{"TagList": list}, nil
}
