package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// What operators set about browsers is in force at once: for the API's answers, and for the UI's.
func TestBrowserSettingsAreInForce(t *testing.T) {
	url, stop := serverHere(t, "-dev-root-token-id=root")
	defer stop()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(method, path, body string, header ...string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequest(method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(text)
	}
	set := func(path, body string) {
		t.Helper()
		if resp, text := send("POST", path, body, "X-Vault-Token", "root"); resp.StatusCode/100 != 2 {
			t.Fatalf("POST %s = %d %s", path, resp.StatusCode, text)
		}
	}
	const app = "https://app.example"
	if resp, _ := send("GET", "/v1/sys/health", "", "Origin", app); resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("before it is allowed: %d, %v", resp.StatusCode, resp.Header)
	}
	set("/v1/sys/config/cors", `{"allowed_origins":"`+app+`"}`)
	resp, _ := send("OPTIONS", "/v1/secret/data/x", "", "Origin", app, "Access-Control-Request-Method", "PUT")
	if resp.StatusCode != 204 || resp.Header.Get("Access-Control-Allow-Origin") != app {
		t.Errorf("preflight = %d, %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := send("GET", "/v1/sys/health", "", "Origin", app); resp.StatusCode != 200 || resp.Header.Get("Access-Control-Allow-Origin") != app {
		t.Errorf("allowed: %d, %v", resp.StatusCode, resp.Header)
	}
	if resp, _ := send("GET", "/v1/sys/health", "", "Origin", "https://evil.example"); resp.StatusCode != 403 {
		t.Errorf("another origin: %d", resp.StatusCode)
	}
	set("/v1/sys/config/ui/headers/X-Department", `{"values":"security"}`)
	if resp, _ := send("GET", "/ui/", ""); resp.Header.Get("X-Department") != "security" || resp.Header.Get("Content-Security-Policy") == "" {
		t.Errorf("the UI's headers are %v", resp.Header)
	}
	if resp, _ := send("GET", "/v1/sys/health", ""); resp.Header.Get("X-Department") != "" {
		t.Error("a header of the UI is in the API's answers")
	}
}
