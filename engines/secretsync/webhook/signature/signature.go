// Package signature signs the requests to receivers of webhooks: those of destinations, and those of notifications.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"
)

// Header has the signature of a request.
const Header = "Coffer-Signature"

// MinKey is the fewest bytes of a key.
const MinKey = 16

// Of signs a body that is sent at a time.
func Of(key, body []byte, at time.Time) string {
	seconds := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(seconds + "."))
	mac.Write(body)
	return "t=" + seconds + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
