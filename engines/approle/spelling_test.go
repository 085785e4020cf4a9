package approle

import "testing"

func TestStoredPath(t *testing.T) {
	e := newEngine()
	for path, want := range map[string]string{
		"role/App":                "role/app",
		"role/App/secret-id":      "role/app/secret-id",
		"role/APP/Unknown":        "role/app/Unknown",
		"role/":                   "role/",
		"role":                    "role",
		"login":                   "login",
		"tidy/Secret-id":          "tidy/Secret-id",
		"role/app/secret-id/":     "role/app/secret-id/",
		"roles/App":               "roles/App",
		"role/\u212aelvin/tokens": "role/kelvin/tokens", // as normalName does, which then takes it
	} {
		if got := e.StoredPath(path); got != want {
			t.Errorf("StoredPath(%q) = %q, want %q", path, got, want)
		}
	}
	if name, err := normalName("\u212aelvin"); err != nil || name != "kelvin" {
		t.Errorf("normalName = %q, %v", name, err)
	}
}
