package device

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/coffer-project/coffer/engines"
	"github.com/coffer-project/coffer/server/audit/record"
)

// The types of devices.
const (
	TypeFile   = "file"
	TypeSyslog = "syslog"
	TypeSocket = "socket"
)

const typeHelp = `"file", "syslog" or "socket"`

// maxPathBytes limits the path of a device.
const maxPathBytes = 256

// Config is one enabled device, as it is stored.
type Config struct {
	Path        string            `json:"path"` // without slashes at its ends
	Type        string            `json:"type"`
	Description string            `json:"description"`
	Options     map[string]string `json:"options"`
	Local       bool              `json:"local"` // this cluster only
	Salt        []byte            `json:"salt"`  // key of the hashes; random, secret
	Created     time.Time         `json:"created"`
	// Confined devices write below the roots of Files only, and their prefix has few signs. Those of before that rule go on,
	// with a warning: a device that ended at an upgrade would end the service with it.
	Confined bool `json:"confined,omitempty"`
	// Declared devices are those of the configuration. An absolute path of their file is the operator's own.
	Declared bool `json:"declared,omitempty"`
}

// NewSalt returns a random salt.
func NewSalt() []byte {
	salt := make([]byte, 32)
	rand.Read(salt)
	return salt
}

// String does not show the salt.
func (c Config) String() string { return fmt.Sprintf("audit device %s (%s)", c.Path, c.Type) }

// GoString does not show the salt.
func (c Config) GoString() string { return c.String() }

// Validate reports what is wrong with the configuration, as an error for the client, or nil.
func (c Config) Validate() error {
	switch {
	case c.Path == "" || c.Path != CleanPath(c.Path) || len(c.Path) > maxPathBytes:
		return engines.Invalid("the path of an audit device must be 1 to %d bytes", maxPathBytes)
	case c.Type == "":
		return engines.Invalid("type is missing: use %s", typeHelp)
	case optionsOf[c.Type] == nil:
		return engines.Invalid("unknown audit backend type %q: use %s", c.Type, typeHelp)
	}
	_, err := c.options()
	return err
}

// Open returns the device, without touching its file or connecting yet.
func (c Config) Open(files Files) (Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	if c.Type == TypeFile && !o.stream() {
		at, err := c.locate(o, files)
		if err != nil {
			return nil, err
		}
		return &fileDevice{at: at, mode: o.mode}, nil
	}
	switch c.Type {
	case TypeSyslog:
		return newSyslog(o, syslogPaths), nil
	case TypeSocket:
		return newSocket(o), nil
	}
	return newStream(o), nil
}

func (c Config) locate(o options, files Files) (location, error) {
	if (!c.Confined || c.Declared) && filepath.IsAbs(o.filePath) {
		return location{file: o.filePath, dataDir: files.DataDir}, nil
	}
	return files.locate(o.filePath)
}

// OpenToRead opens the file that the device writes, to be read. A device that writes no regular file is an error for the client.
func (c Config) OpenToRead(files Files) (*os.File, int64, error) {
	o, err := c.options()
	if err != nil {
		return nil, 0, err
	}
	if c.Type != TypeFile || o.stream() {
		return nil, 0, engines.Invalid("the audit device %s/ writes no file: only files can be searched", c.Path)
	}
	at, err := c.locate(o, files)
	if err != nil {
		return nil, 0, err
	}
	return at.read()
}

// Style returns how the lines of the device are written.
func (c Config) Style() (record.Style, error) {
	o, err := c.options()
	return o.style, err
}

// CleanPath returns the form of a path that is stored.
func CleanPath(path string) string { return strings.Trim(path, "/") }

// options is what Config.Options says, parsed.
type options struct {
	// Of all types.
	style record.Style
	// Of files.
	filePath string
	mode     fs.FileMode
	// Of syslog.
	facility int
	tag      string
	// Of sockets; syslog has the timeout too.
	network string
	address string
	timeout time.Duration
}

// optionsOf names the options of each type, commonOptions those of all.
var (
	optionsOf = map[string][]string{
		TypeFile:   {"file_path", "path", "mode"},
		TypeSyslog: {"facility", "tag"},
		TypeSocket: {"address", "socket_type", "write_timeout"},
	}
	commonOptions = []string{"prefix", "log_raw", "hmac_accessor", "elide_list_responses", "format"}
)

// options parses c.Options. The error is for the client and names the first option that is wrong.
func (c Config) options() (options, error) {
	o := options{
		mode: 0o600, facility: facilities["AUTH"], tag: "coffer", network: "tcp", timeout: defaultTimeout,
	}
	known := slices.Concat(optionsOf[c.Type], commonOptions)
	for _, name := range slices.Sorted(maps.Keys(c.Options)) {
		if !slices.Contains(known, name) {
			return options{}, engines.Invalid("unknown option %q of an audit device; there are: %s", name, strings.Join(known, ", "))
		}
		if err := o.set(name, c.Options[name]); err != nil {
			return options{}, err
		}
	}
	if c.Confined && (len(o.style.Prefix) > maxPrefixBytes || strings.ContainsFunc(o.style.Prefix, notInPrefix)) {
		return options{}, engines.Invalid(`option "prefix" must be at most %d letters, digits or signs of "@:._-", such as "@cee:"`, maxPrefixBytes)
	}
	var err error
	switch c.Type {
	case TypeFile:
		err = o.checkFile()
	case TypeSocket:
		err = o.checkSocket()
	}
	if err != nil {
		return options{}, err
	}
	return o, nil
}

// maxPrefixBytes limits what each line begins with.
const maxPrefixBytes = 32

// notInPrefix reports whether a rune could make a line something that a program other than a reader of logs understands.
func notInPrefix(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("@:._-", r)
}

// stream reports whether a device of type "file" has no file.
func (o *options) stream() bool {
	return o.filePath == "stdout" || o.filePath == "stderr" || o.filePath == "discard"
}

func (o *options) checkFile() error {
	if o.filePath == "" {
		return engines.Invalid(`option "file_path" is missing: a path below the file_roots of the server's configuration, "stdout", "stderr" or "discard"`)
	}
	return nil
}

func (o *options) set(name, value string) error {
	var err error
	switch name {
	case "file_path", "path":
		o.filePath = value
	case "prefix":
		// A line must stay one line, and nothing a program would run.
		if strings.ContainsFunc(value, unicode.IsControl) || strings.HasPrefix(value, "#!") {
			return engines.Invalid(`option "prefix" must not contain control characters or begin with "#!"`)
		}
		o.style.Prefix = value
	case "format":
		if value != "json" {
			return engines.Invalid(`option "format" must be "json"`)
		}
	case "log_raw":
		o.style.Raw, err = parseBool(name, value)
	case "hmac_accessor":
		var hashed bool
		hashed, err = parseBool(name, value)
		o.style.PlainAccessor = !hashed
	case "elide_list_responses":
		o.style.ElideLists, err = parseBool(name, value)
	case "mode":
		o.mode, err = parseMode(value)
	case "facility":
		o.facility, err = parseFacility(value)
	case "tag":
		o.tag, err = parseTag(value)
	case "address":
		o.address = value
	case "socket_type":
		o.network, err = parseNetwork(value)
	case "write_timeout":
		o.timeout, err = parseTimeout(value)
	}
	return err
}

func parseBool(name, value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, engines.Invalid("option %q must be true or false", name)
	}
	return b, nil
}

// parseMode reads an octal file mode. A log that could be executed is a way to run what clients send.
func parseMode(value string) (fs.FileMode, error) {
	m, err := strconv.ParseUint(value, 8, 32)
	if err != nil || m > 0o777 || m&0o111 != 0 {
		return 0, engines.Invalid(`option "mode" must be an octal file mode without execute bits, such as "0600"; "0000" leaves the mode alone`)
	}
	return fs.FileMode(m), nil
}
