package connection

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/coffer-project/coffer/engines/secretsync/destination"
	"github.com/coffer-project/coffer/engines/secretsync/state"
)

func mustGuard(t *testing.T, n state.Network, operator bool) addressGuard {
	t.Helper()
	g, err := NewGuard(&n, operator)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestGuard: where connections may go, by what the fields of a destination say.
func TestGuard(t *testing.T) {
	strict, loose := state.Network{}, state.Network{DisableStrict: true}
	inside := state.Network{IPv4: []string{"10.1.0.0/16"}, IPv6: []string{"fd12::/16"}, Ports: []string{"8443"}}
	everything := state.Network{DisableStrict: true, IPv4: []string{"0.0.0.0/0"}, IPv6: []string{"::/0"}, Ports: []string{"80", "443", "8200"}}
	tests := []struct {
		what    string
		network state.Network
		to      string
		allowed bool
	}{
		{"a public service", strict, "20.42.0.1:443", true},
		{"a public service over IPv6", strict, "[2603:1030::1]:443", true},
		{"another port", strict, "20.42.0.1:8443", false},
		{"another port, loosely", loose, "20.42.0.1:8443", true},
		{"a private address", strict, "10.1.2.3:443", false},
		{"a private address, loosely", loose, "10.1.2.3:443", true},
		{"a private address mapped to IPv6", strict, "[::ffff:10.1.2.3]:443", false},
		{"an allowed network", inside, "10.1.2.3:8443", true},
		{"an allowed network over IPv6", inside, "[fd12::1]:8443", true},
		{"an allowed network, another port", inside, "10.1.2.3:443", false},
		{"outside of the allowed networks", inside, "20.42.0.1:8443", false},
		{"carrier-grade NAT", strict, "100.64.0.1:443", false},
		{"the unspecified address", loose, "0.0.0.0:443", false},
		{"the unspecified address over IPv6", loose, "[::]:443", false},
		{"garbage", loose, "localhost:443", false},
	}
	for _, of := range []struct{ what, host string }{
		{"loopback", "127.0.0.1"}, {"all of loopback", "127.8.9.10"}, {"loopback over IPv6", "[::1]"}, {"mapped loopback", "[::ffff:127.0.0.1]"},
		{"compatible loopback", "[::127.0.0.1]"}, {"translated loopback", "[64:ff9b::7f00:1]"}, {"tunnelled loopback", "[2002:7f00:1::1]"},
		{"the metadata service", "169.254.169.254"}, {"its mapped address", "[::ffff:169.254.169.254]"}, {"its translated address", "[64:ff9b::a9fe:a9fe]"},
		{"its locally translated address", "[64:ff9b:1::a9fe:a9fe]"}, {"its statelessly translated address", "[::ffff:0:a9fe:a9fe]"},
		{"its tunnelled address", "[2002:a9fe:a9fe::1]"}, {"the metadata service over IPv6", "[fd00:ec2::254]"}, {"that of another cloud", "[fd20:ce::254]"},
		{"the host of virtual machines", "168.63.129.16"}, {"that of one more cloud", "100.100.100.200"}, {"that of yet another", "192.0.0.192"},
		{"link-local", "[fe80::1]"}, {"link-local with a zone", "[fe80::1%eth0]"},
	} {
		for name, n := range map[string]state.Network{"strictly": strict, "loosely": loose, "with every network": everything} {
			tests = append(tests, struct {
				what    string
				network state.Network
				to      string
				allowed bool
			}{of.what + ", " + name, n, of.host + ":443", false})
		}
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			g := mustGuard(t, test.network, false)
			err := g.check("tcp", test.to, nil)
			var e *destination.Error
			switch {
			case (err == nil) != test.allowed:
				t.Errorf("%s: %v", test.to, err)
			case err != nil && (!errors.As(err, &e) || e.Code != destination.Blocked || e.Class != destination.Client):
				t.Errorf("%s: %#v", test.to, err)
			}
			own := mustGuard(t, test.network, true)
			if err := own.check("tcp", test.to, nil); err != nil && test.to != "localhost:443" {
				t.Errorf("the operator has allowed %s: %v", test.to, err)
			}
		})
	}
}

// TestNetworkFields: what is no network and no port is rejected.
func TestNetworkFields(t *testing.T) {
	for _, n := range []state.Network{{IPv4: []string{"10.0.0.1"}}, {IPv4: []string{"::/0"}}, {IPv4: []string{"x"}}, {IPv6: []string{"10.0.0.0/8"}}, {IPv6: []string{"fd00::"}}, {Ports: []string{"0"}}, {Ports: []string{"65536"}}, {Ports: []string{"https"}}} {
		if _, err := NewGuard(&n, false); err == nil {
			t.Errorf("%+v is taken", n)
		}
	}
}

// TestDialsAreGuarded: names are looked at when they have become addresses, and no proxy of the environment stands between.
func TestDialsAreGuarded(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := NewPool(Options{})
	d := &state.Destination{Type: "x", Settings: state.Settings{Network: state.Network{DisableStrict: true, IPv4: []string{"127.0.0.0/8"}, IPv6: []string{"::1/128"}, Ports: []string{port}}}}
	for _, operator := range []bool{false, true} {
		s.opts.Operator.AllowPrivate = operator
		env, err := s.environmentOf(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, url := range []string{server.URL, "http://localhost:" + port} {
			answer, err := env.Client.Get(url)
			if err == nil {
				answer.Body.Close()
			}
			var e *destination.Error
			if operator != (err == nil) || !operator && (!errors.As(err, &e) || e.Code != destination.Blocked) {
				t.Errorf("%s, allowed by the operator %v: %v", url, operator, err)
			}
		}
		conn, err := env.Dial(t.Context(), "tcp", server.Listener.Addr().String())
		if err == nil {
			conn.Close()
		}
		if operator != (err == nil) {
			t.Errorf("dialling, allowed by the operator %v: %v", operator, err)
		}
	}
}

// TestRedirects: no redirect leads to another host, nor from TLS to none.
func TestRedirects(t *testing.T) {
	asked := 0
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	t.Cleanup(other.Close)
	var to string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/end" {
			return
		}
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(server.Close)
	s := NewPool(Options{Operator: Operator{AllowPrivate: true}})
	env, err := s.environmentOf(&state.Destination{Type: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		to   string
		want int
	}{
		{other.URL, 307}, {"http://169.254.169.254/latest", 307}, {"/end", 200}, {server.URL + "/end", 200}, {"/again", 307},
		{strings.Replace(server.URL, "http://", "https://", 1), 307}, {strings.Replace(server.URL, "http://", "http://user:password@", 1) + "/end", 200},
	} {
		to = test.to
		req, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer x")
		answer, err := env.Client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != test.want {
			t.Errorf("to %s: status %d, want %d", test.to, answer.StatusCode, test.want)
		}
	}
	if asked > 0 {
		t.Errorf("another host was asked %d times", asked)
	}
}

func ExampleNetwork() {
	g, _ := NewGuard(&state.Network{IPv4: []string{"10.1.0.0/16"}}, false)
	fmt.Println(g.check("tcp", netip.MustParseAddrPort("10.1.0.1:443").String(), nil))
	fmt.Println(g.check("tcp", "169.254.169.254:80", nil))
	// Output:
	// <nil>
	// secret sync does not connect to addresses of this machine and of its metadata service
}

// TestMetadataClient: the metadata service is reached by those who may use credentials of the environment, and nothing else through it.
func TestMetadataClient(t *testing.T) {
	for _, test := range []struct {
		says, ns string
		may      bool
	}{{"", "n1", true}, {EnvironmentRoot, "root", true}, {EnvironmentRoot, "n1", false}, {EnvironmentNone, "root", false}} {
		pool := NewPool(Options{Operator: Operator{EnvironmentCredentials: test.says}})
		env, err := pool.environmentOf(&state.Destination{NS: test.ns})
		if err != nil || (env.Metadata != nil) != test.may {
			t.Errorf("environment_credentials %q in %s: %v, %v", test.says, test.ns, env.Metadata, err)
		}
	}
	for _, url := range []string{"http://127.0.0.1/", "http://169.254.169.254:8080/", "http://169.254.169.253/"} {
		_, err := metadataClient().Get(url)
		var e *destination.Error
		if !errors.As(err, &e) || e.Code != destination.Blocked {
			t.Errorf("%s: %v", url, err)
		}
	}
}
