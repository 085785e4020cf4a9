package cloud

import (
	"strings"
	"testing"
	"time"

	"github.com/coffer-project/coffer/cmd/coffer/command"
)

// What is printed as the end of credentials is not after it.
func TestCredentialsEndInTime(t *testing.T) {
	asked := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct{ answer, want string }{
		{`{"lease_id":"cloud/creds/dev/1","lease_duration":3600,"renewable":true,"data":{"access_key":"AKIA1","secret_key":"s'1","security_token":null,"session_token":null}}`, "2026-01-02T04:04:05Z"},                                                               // its lease
		{`{"lease_id":"cloud/creds/dev/2","lease_duration":900,"data":{"access_key":"ASIA1","secret_key":"s1","security_token":"t1","session_token":"t1","ttl":899,"arn":"arn:aws:sts::123456789012:assumed-role/r/s"},"warnings":["mind"]}`, "2026-01-02T03:19:04Z"}, // its ttl, which is what the provider said
		{`{"data":{"access_key":"a","secret_key":"b"}}`, "0001-01-01T00:00:00Z"},
	} {
		creds, err := issuedCredentials(&command.Response{Raw: []byte(tt.answer)}, asked)
		if err != nil {
			t.Fatal(err)
		}
		if got := creds.Expiration.Format(time.RFC3339); got != tt.want {
			t.Errorf("expiration %s, want %s", got, tt.want)
		}
	}
}

// The console is the one of the credentials' partition.
func TestConsolesOfPartitions(t *testing.T) {
	for partition, want := range map[string]string{"aws": "https://signin.aws.amazon.com/", "aws-cn": "https://signin.amazonaws.cn/", "aws-us-gov": "https://signin.amazonaws-us-gov.com/"} {
		c := &command.Call{Command: loginCommand()}
		got, err := consoleOf(c, &credentials{ARN: "arn:" + partition + ":sts::123456789012:assumed-role/r/s"})
		if err != nil || !strings.HasPrefix(got.federation, want) {
			t.Errorf("%s: %v, %v", partition, got, err)
		}
	}
}
