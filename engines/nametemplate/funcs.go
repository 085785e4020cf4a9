package nametemplate

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/google/uuid"
)

// MaxBytes is the longest text that a template, or a function in it, makes.
const MaxBytes = 4096

var (
	errTooMuch = fmt.Errorf("makes more than %d bytes", MaxBytes)
	errVerb    = errors.New("knows %s, %d, %v, %q, %x and %%, and widths of two digits")
	errNested  = errors.New("templates in templates (define, block, template) cannot be used here")
)

// stable are the functions that make the same of the same. What they return is no longer than MaxBytes.
var stable = template.FuncMap{
	"truncate":        truncate,
	"truncate_sha256": truncateSHA256,
	"uppercase":       strings.ToUpper,
	"lowercase":       strings.ToLower,
	"replace": func(old, with, s string) (string, error) {
		return limited(strings.ReplaceAll(s, old, with))
	},
	"sha256": func(s string) string { return hexSum(s) },
	"base64": func(s string) (string, error) { return limited(base64.StdEncoding.EncodeToString([]byte(s))) },
	// In place of the language's own, which pad to any width.
	"print":  func(args ...any) (string, error) { return limited(fmt.Sprint(args...)) },
	"printf": sprintf,
}

// Fresh are functions that make something new each time, or tell the time.
func Fresh(now time.Time) template.FuncMap {
	return template.FuncMap{
		"random":           randomText,
		"unix_time":        func() string { return strconv.FormatInt(now.Unix(), 10) },
		"unix_time_millis": func() string { return strconv.FormatInt(now.UnixMilli(), 10) },
		"timestamp":        func(layout string) (string, error) { return limited(now.UTC().Format(layout)) },
		"uuid":             uuid.NewString,
	}
}

func limited(s string) (string, error) {
	if len(s) > MaxBytes {
		return "", errTooMuch
	}
	return s, nil
}

const maxRandomChars = 256

// randomText returns n letters and digits.
func randomText(n int) (string, error) {
	const chars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	if n < 1 || n > maxRandomChars {
		return "", fmt.Errorf("takes 1 to %d", maxRandomChars)
	}
	text := make([]byte, 0, n)
	for pool := make([]byte, 2*n); len(text) < n; {
		rand.Read(pool) //nolint:errcheck // never fails
		for _, b := range pool {
			// Of the 256 values as many are used as make every character equally likely.
			if int(b) < 256/len(chars)*len(chars) && len(text) < n {
				text = append(text, chars[int(b)%len(chars)])
			}
		}
	}
	return string(text), nil
}

// truncate returns the first n characters.
func truncate(n int, s string) (string, error) {
	if n < 1 {
		return "", errors.New("takes a length of at least 1")
	}
	return firstChars(n, s), nil
}

func firstChars(n int, s string) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// truncateSHA256 returns s if it has n characters at most, else its first n-8 and 8 of the hash of the others, so that
// texts with the same beginning stay apart.
func truncateSHA256(n int, s string) (string, error) {
	const hashed = 8
	if n <= hashed {
		return "", fmt.Errorf("takes a length of at least %d", hashed+1)
	}
	if firstChars(n, s) == s {
		return s, nil
	}
	first := firstChars(n-hashed, s)
	return first + hexSum(s[len(first):])[:hashed], nil
}

func hexSum(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// verb is what printf may be told: no widths of more than two digits, none from an argument.
var verb = regexp.MustCompile(`%[-+ #0]*[0-9]{0,2}(?:\.[0-9]{0,2})?[sdvqxX%]`)

func sprintf(format string, args ...any) (string, error) {
	if strings.Contains(verb.ReplaceAllString(format, ""), "%") {
		return "", errVerb
	}
	return limited(fmt.Sprintf(format, args...))
}
