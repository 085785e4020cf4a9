// Command provider is Terraform's Vault provider 1.9.0 as a plugin of protocol 5.
package main

import (
	"github.com/hashicorp/terraform/plugin"
	"github.com/terraform-providers/terraform-provider-vault/vault"
)

func main() { plugin.Serve(&plugin.ServeOpts{ProviderFunc: vault.Provider}) }
