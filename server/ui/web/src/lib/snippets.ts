// Ways to get a secret elsewhere, as text to copy. None holds a value, except for dotenv.

import { dataPath, isV2, type Mount } from './kv'
import { show, type Fields } from './json'
import { namespace } from './route.svelte'
import { curl, quoted } from './sent.svelte'

const trimmed = (m: Mount) => m.path.slice(0, -1)
const name = (path: string) => path.toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-|-$/g, '') || 'secret'

export function cliOf(m: Mount, path: string, version?: number): string {
  const ns = namespace() ? ` -namespace=${quoted(namespace())}` : ''
  return `coffer kv get -mount=${quoted(trimmed(m))}${ns}${version ? ` -version=${version}` : ''} ${quoted(path)}`
}

export const curlOf = (m: Mount, path: string, version?: number) =>
  curl({ method: 'GET', path: dataPath(m, path), query: version ? { version } : undefined, namespace: namespace() })

export function terraformOf(m: Mount, path: string, version?: number): string {
  const id = name(path).replaceAll('-', '_').replace(/^\d/, '_$&')
  const lines = isV2(m)
    ? [`data "vault_kv_secret_v2" "${id}" {`, `  mount = ${JSON.stringify(trimmed(m))}`, `  name  = ${JSON.stringify(path)}`]
    : [`data "vault_generic_secret" "${id}" {`, `  path = ${JSON.stringify(m.path + path)}`]
  if (namespace()) lines.push(`  namespace = ${JSON.stringify(namespace())}`)
  if (version) lines.push(`  version = ${version}`)
  return [...lines, '}', ''].join('\n')
}

/** For the External Secrets Operator, with a store that is called coffer. */
export function externalSecretOf(m: Mount, path: string): string {
  return `apiVersion: external-secrets.io/v1
kind: ExternalSecret
metadata:
  name: ${name(path)}
spec:
  refreshInterval: 1h
  secretStoreRef:
    kind: SecretStore
    name: coffer
  target:
    name: ${name(path)}
  dataFrom:
    - extract:
        key: ${JSON.stringify(isV2(m) ? path : m.path + path)}
`
}

/** Lines for a file of variables. */
export function dotenvOf(data: Fields): string {
  const quotedValue = (v: string) => (/^[\w@%+=:,./-]*$/.test(v) ? v : `"${v.replace(/[\\"$`]/g, '\\$&').replaceAll('\n', '\\n')}"`)
  return Object.entries(data).map(([k, v]) => `${k.replace(/[^A-Za-z0-9_]/g, '_')}=${quotedValue(show(v))}\n`).join('')
}
