package cloud1

import "testing"

// TestURL: every partition of the vendor has a domain of its own.
func TestURL(t *testing.T) {
	for region, want := range map[string]string{
		"eu-central-1": "https://ssm.eu-central-1.amazonaws.com", "us-gov-west-1": "https://ssm.us-gov-west-1.amazonaws.com",
		"cn-north-1": "https://ssm.cn-north-1.amazonaws.com.cn", "us-iso-east-1": "https://ssm.us-iso-east-1.c2s.ic.gov",
	} {
		if got, err := (JSON{Signing: "ssm"}).url(t.Context(), region); err != nil || got != want {
			t.Errorf("in %s it is at %s (%v), want %s", region, got, err, want)
		}
	}
}
