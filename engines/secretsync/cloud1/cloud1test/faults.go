package cloud1test

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coffer-project/coffer/engines/secretsync/destination/desttest"
)

// Refuse rejects whatever was asked, as a service does. It is as talkative as can be.
func Refuse(status int, code string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"__type": code, "Message": string(body) + r.Header.Get("Authorization")})
	}
}

// Faults are those of a service. trouble is its code for its own, reads are the actions that change nothing.
func Faults(service http.Handler, trouble string, reads ...string) *desttest.Faults {
	return &desttest.Faults{
		Next: service,
		Reads: func(r *http.Request, _ []byte) bool {
			_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
			return slices.Contains(reads, action)
		},
		Throttled: func(w http.ResponseWriter, r *http.Request, after time.Duration) {
			w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
			Refuse(http.StatusBadRequest, "ThrottlingException")(w, r)
		},
		Troubled: Refuse(http.StatusInternalServerError, trouble),
		Rejected: Refuse(http.StatusBadRequest, "AccessDeniedException"),
	}
}
