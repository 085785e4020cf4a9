// Package dependency is consul-template's: this file stands in it for its dependency_test.go, whose TestMain starts Consul, Nomad and Vault.
// Here Coffer runs already, at COFFER_TEST_SERVER, not yet initialized. Names are those which the suite uses.
package dependency

import (
	"fmt"
	"io"
	"log"
	"os"
	"testing"

	vapi "github.com/hashicorp/vault/api"
)

var (
	vaultAddr   = os.Getenv("COFFER_TEST_SERVER")
	vaultToken  string
	testClients = NewClientSet()
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func prepare() error {
	config := vapi.DefaultConfig()
	config.Address = vaultAddr
	client, err := vapi.NewClient(config)
	if err != nil {
		return err
	}
	keys, err := client.Sys().Init(&vapi.InitRequest{SecretShares: 1, SecretThreshold: 1})
	if err != nil {
		return err
	}
	if _, err := client.Sys().Unseal(keys.KeysB64[0]); err != nil {
		return err
	}
	vaultToken = keys.RootToken
	client.SetToken(vaultToken)
	if err := client.Sys().Mount("secret", &vapi.MountInput{Type: "kv", Options: map[string]string{"version": "2"}}); err != nil {
		return err
	}
	return testClients.CreateVaultClient(&CreateVaultClientInput{Address: vaultAddr, Token: vaultToken})
}

type vaultServer struct{ secretsPath string }

func testVaultServer(t *testing.T, path, version string) (*ClientSet, *vaultServer) {
	t.Helper()
	input := &vapi.MountInput{Type: "kv", Options: map[string]string{"version": version}}
	if err := testClients.Vault().Sys().Mount(path, input); err != nil {
		t.Fatal(err)
	}
	return testClients, &vaultServer{secretsPath: path}
}

func (v *vaultServer) CreateSecret(path string, data map[string]any) error {
	q, err := NewVaultWriteQuery(v.secretsPath+"/"+path, data)
	if err != nil {
		return err
	}
	_, err = q.writeSecret(testClients, &QueryOptions{})
	return err
}

func (v *vaultServer) deleteSecret(path string) error {
	_, err := testClients.Vault().Logical().Delete(v.secretsPath + "/" + path)
	return err
}
