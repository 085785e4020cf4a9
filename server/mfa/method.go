package mfa

import (
	"context"
	"slices"
	"strings"

	"github.com/pquerna/otp"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/storage"
)

// method says what codes are like. Secrets keep the codes' form of the time they were generated.
type method struct {
	ID          string   `json:"id"`
	Name        string   `json:"name,omitempty"`
	Codes       codes    `json:"codes"`
	QRSize      int      `json:"qr_size"` // pixels; 0: none
	KeySize     int      `json:"key_size"`
	MaxAttempts int      `json:"max_attempts"`
	UsedBy      []string `json:"used_by,omitempty"` // enforcements: keys
}

// codes is the form of the codes of one secret.
type codes struct {
	Issuer    string `json:"issuer"`
	Algorithm string `json:"algorithm"` // "SHA1", "SHA256" or "SHA512"
	Digits    int    `json:"digits"`
	Period    int    `json:"period"` // seconds
	Skew      int    `json:"skew"`   // periods before and after that count too
}

var algorithms = map[string]otp.Algorithm{"SHA1": otp.AlgorithmSHA1, "SHA256": otp.AlgorithmSHA256, "SHA512": otp.AlgorithmSHA512}

// pointer is the value of a name's key.
type pointer struct {
	Owner string `json:"owner"`
}

type methodFields struct {
	Name        string           `json:"method_name" form:"lower" help:"Name of the method, to be used instead of its id." max:"128"`
	Issuer      string           `json:"issuer" help:"Who issues the codes, for the authenticator app." max:"256"`
	Period      engines.Duration `json:"period" help:"How long each code is valid; 30 seconds if never set."`
	KeySize     int              `json:"key_size" help:"Bytes of a secret; 20 if never set."`
	QRSize      int              `json:"qr_size" help:"Pixels of the QR code's side, 0 for none; 200 if never set."`
	Algorithm   string           `json:"algorithm" help:"Hash algorithm; SHA1, which every app knows, if never set." enum:"SHA1,SHA256,SHA512"`
	Digits      int              `json:"digits" help:"Digits of a code, 6 or 8; 6 if never set."`
	Skew        int              `json:"skew" help:"Periods before and after the current one whose codes count, 0 or 1; 1 if never set."`
	MaxAttempts int              `json:"max_validation_attempts" help:"Wrong codes in five minutes after which no code counts; 5 if never set."`
}

type methodIn struct {
	ID string `json:"id" help:"Id of the method."`
	methodFields
}

type idIn struct {
	ID string `json:"id" help:"Id of the method."`
}

type noInput struct{}

func newMethod(ns string) *method {
	return &method{
		ID: newID(ns), Codes: codes{Algorithm: "SHA1", Digits: 6, Period: 30, Skew: 1},
		QRSize: 200, KeySize: 20, MaxAttempts: 5,
	}
}

// apply sets what the request gave and reports what is wrong with the whole.
func (in *methodFields) apply(req *engines.Request, m *method) error {
	set(req, "issuer", &m.Codes.Issuer, in.Issuer)
	set(req, "period", &m.Codes.Period, int(in.Period.Seconds()))
	set(req, "key_size", &m.KeySize, in.KeySize)
	set(req, "qr_size", &m.QRSize, in.QRSize)
	if in.Algorithm != "" {
		m.Codes.Algorithm = in.Algorithm
	}
	set(req, "digits", &m.Codes.Digits, in.Digits)
	set(req, "skew", &m.Codes.Skew, in.Skew)
	set(req, "max_validation_attempts", &m.MaxAttempts, in.MaxAttempts)

	var problems []string
	wrong := func(bad bool, field, text string) {
		if bad {
			problems = append(problems, `field "`+field+`": `+text)
		}
	}
	wrong(m.Codes.Issuer == "" || strings.ContainsAny(m.Codes.Issuer, ":\x00\n\r"), "issuer", `must be a text without ":"`)
	wrong(m.Codes.Period < 15 || m.Codes.Period > 300, "period", "must be 15 to 300 seconds")
	wrong(m.KeySize < 16 || m.KeySize > 128, "key_size", "must be 16 to 128 bytes")
	wrong(m.QRSize != 0 && (m.QRSize < 64 || m.QRSize > 1024), "qr_size", "must be 0 or 64 to 1024 pixels")
	wrong(m.Codes.Digits != 6 && m.Codes.Digits != 8, "digits", "must be 6 or 8")
	wrong(m.Codes.Skew != 0 && m.Codes.Skew != 1, "skew", "must be 0 or 1")
	wrong(m.MaxAttempts < 1 || m.MaxAttempts > 100, "max_validation_attempts", "must be 1 to 100")
	if problems != nil {
		return engines.Invalid("%s", strings.Join(problems, "; "))
	}
	return nil
}

func set[T any](req *engines.Request, field string, v *T, given T) {
	if req.Given(field) {
		*v = given
	}
}

func (s *Store) createMethod(ctx context.Context, req *engines.Request, in *methodFields) (*engines.Response, error) {
	m := newMethod(namespace(req.Mount))
	if err := s.update(ctx, func(t *storage.Txn) error { return in.write(ctx, t, req, m) }); err != nil {
		return nil, err
	}
	return &engines.Response{Data: map[string]any{"method_id": m.ID}}, nil
}

func (s *Store) updateMethod(ctx context.Context, req *engines.Request, in *methodIn) (*engines.Response, error) {
	return nil, s.update(ctx, func(t *storage.Txn) error {
		m, err := methodWithin(ctx, t, req, in.ID)
		if missing(err) {
			return engines.NotFound("no method has this id: create one at mfa/method/totp")
		}
		if err != nil {
			return err
		}
		return in.write(ctx, t, req, m)
	})
}

// write applies the fields to a method and puts it, with its name.
func (in *methodFields) write(ctx context.Context, t *storage.Txn, req *engines.Request, m *method) error {
	if err := in.apply(req, m); err != nil {
		return err
	}
	if req.Given("method_name") && in.Name != m.Name {
		if err := m.rename(ctx, t, in.Name); err != nil {
			return err
		}
	}
	put(t, methodKey(m.ID), m)
	return nil
}

func (m *method) rename(ctx context.Context, t *storage.Txn, name string) error {
	ns := namespaceOf(m.ID)
	if m.Name != "" {
		t.Delete(methodNameKey(ns, m.Name))
	}
	if m.Name = name; name == "" {
		return nil
	}
	if err := checkName("method_name", name); err != nil {
		return err
	}
	k := methodNameKey(ns, name)
	if p, err := get[pointer](ctx, t, k); err == nil && p.Owner != m.ID {
		return engines.Invalid(`field "method_name": is already in use`)
	} else if err != nil && !missing(err) {
		return err
	}
	put(t, k, &pointer{Owner: m.ID})
	return nil
}

// methodWithin returns the method of the request's namespace with an id, or storage.ErrNotFound.
func methodWithin(ctx context.Context, r getter, req *engines.Request, id string) (*method, error) {
	return methodOf(ctx, r, id, namespace(req.Mount))
}

func methodOf(ctx context.Context, r getter, id string, namespaces ...string) (*method, error) {
	if !validID(id) || !slices.Contains(namespaces, namespaceOf(id)) {
		return nil, storage.ErrNotFound
	}
	return get[method](ctx, r, methodKey(id))
}

func (s *Store) readMethod(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	m, err := methodWithin(ctx, s.store, req, in.ID)
	if err != nil {
		return nil, found(err)
	}
	return &engines.Response{Data: s.describeMethod(m)}, nil
}

func (s *Store) describeMethod(m *method) map[string]any {
	ns := namespaceOf(m.ID)
	return map[string]any{
		"type": "totp", "id": m.ID, "name": m.Name, "issuer": m.Codes.Issuer, "period": m.Codes.Period,
		"key_size": m.KeySize, "qr_size": m.QRSize, "algorithm": m.Codes.Algorithm, "digits": m.Codes.Digits,
		"skew": m.Codes.Skew, "max_validation_attempts": m.MaxAttempts,
		"namespace_id": ns, "namespace_path": s.opts.Namespaces.Path(ns),
	}
}

func (s *Store) listMethods(ctx context.Context, req *engines.Request, _ *noInput) (*engines.Response, error) {
	entries, err := s.store.Scan(ctx, key(storage.Shared, namespace(req.Mount), "method", ""), "", 0)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, engines.NotFound("")
	}
	keys, info := []string{}, map[string]any{}
	for _, e := range entries {
		m, err := decode[method](e)
		if err != nil {
			return nil, err
		}
		keys = append(keys, m.ID)
		info[m.ID] = s.describeMethod(m)
	}
	return &engines.Response{Data: map[string]any{"keys": keys, "key_info": info}}, nil
}

// deleteMethod refuses methods that logins need: without the method no login could satisfy the enforcement.
func (s *Store) deleteMethod(ctx context.Context, req *engines.Request, in *idIn) (*engines.Response, error) {
	var m *method
	err := s.update(ctx, func(t *storage.Txn) (err error) {
		if m, err = methodWithin(ctx, t, req, in.ID); err != nil {
			return err
		}
		if len(m.UsedBy) > 0 {
			return engines.Invalid("the method is used by an enforcement: take it out of there first")
		}
		if m.Name != "" {
			t.Delete(methodNameKey(namespaceOf(m.ID), m.Name))
		}
		t.Delete(methodKey(m.ID))
		return nil
	})
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Nothing leads to what is left: no other method will ever have the id.
	if err := storage.DeletePrefix(ctx, s.store, secretKey(m.ID, "")); err != nil {
		return nil, err
	}
	return nil, storage.DeletePrefix(ctx, s.store, attemptsKey(m.ID, ""))
}

// use notes in the method that an enforcement needs it, or does not any more.
func (m *method) use(t *storage.Txn, by storage.Key, used bool) {
	m.UsedBy = slices.DeleteFunc(m.UsedBy, func(k string) bool { return k == string(by) })
	if used {
		m.UsedBy = append(m.UsedBy, string(by))
	}
	put(t, methodKey(m.ID), m)
}
