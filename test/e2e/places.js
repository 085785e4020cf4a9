// The pages of the UI by their addresses, and what a server has for them to show.

export const places = ['secrets', 'secrets/team%2F/list/many/', 'secrets/team%2F/show/app/stripe', 'secrets/team%2F/show/app/stripe?tab=versions', 'secrets/team%2F/show/app/stripe?tab=delivery', 'secrets/team%2F/show/app/stripe?tab=access', 'secrets/team%2F/show/app/stripe?tab=metadata', 'secrets/team%2F/edit/app/stripe', 'policies', 'policies/edit/reader', 'tokens', 'wrapping', 'engines', 'engines/new', 'engines/methods', 'audit', 'overview', 'overview/replication', 'home', 'leases', 'limits', 'namespaces', 'tools', 'sync', 'sync/webhook/hook', 'sync/new', 'plugins', 'policies/password', 'issuer', 'entities', 'entities/ana-of-payments', 'mfa', 'nonsense']

/** Fills a server; api sends a request as root. */
export async function fill(api) {
  const write = (path, data) => api('PUT', `team/data/${path}`, { data })
  const policy = (name, text) => api('PUT', `sys/policies/acl/${name}`, { policy: text })
  await api('POST', 'sys/mounts/team', { type: 'kv', options: { version: '2' } })
  await write('app/stripe', { key: 'one' })
  await write('app/stripe', { key: 'two', mode: 'live' })
  for (let i = 1; i <= 12; i++) await write(`many/s${i}`, { n: String(i) })
  await policy('reader', 'path "team/data/app/*" { capabilities = ["read"] } path "team/metadata/*" { capabilities = ["list"] }')
  await policy('writer', 'path "team/*" { capabilities = ["create", "read", "update", "list"] }')
  // Secret sync does not connect to this machine: what is associated cannot go on by itself.
  await api('PUT', 'sys/sync/destinations/webhook/hook', { url: 'https://127.0.0.1:1/', signing_key: 'k'.repeat(40) })
  await api('POST', 'sys/sync/destinations/webhook/hook/associations/set', { mount: 'team', secret_name: 'app/stripe' })
  await api('POST', 'identity/entity', { name: 'ana-of-payments' })
}
