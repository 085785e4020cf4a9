// The requests of the page that is shown, as they can be repeated on the command line. Secrets are left out before they are kept.

import { events, type Sent } from './api'
import { isObject, parseExact } from './json'

const KEPT = 20

const secretName = /passw|secret_id|secret_key|credential|token$|^key$|^code$|passcode|private|certificate_pem/i
const LEFT_OUT = '…'

/** A value with secrets left out: all texts, or those whose names look like secrets or are given. */
function masked(value: unknown, all: boolean, hidden: string[] = []): unknown {
  if (Array.isArray(value)) return value.map((v) => masked(v, all))
  if (isObject(value)) {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, masked(v, all || hidden.includes(k) || (secretName.test(k) && typeof v === 'string'))]))
  }
  return all && value !== null && typeof value !== 'boolean' ? LEFT_OUT : value
}

/** The request without secrets. A body that is text is the content of a secret. */
export function withoutSecrets(s: Sent): Sent {
  if (s.body === undefined || s.body instanceof Blob) return { ...s, body: undefined } // of a file, the name is not known here
  if (typeof s.body !== 'string') return { ...s, body: masked(s.body, false, s.hidden) }
  const body = parseExact(s.body)
  return { ...s, body: isObject(body.options) && body.data ? { options: body.options, data: masked(body.data, true) } : masked(body, true) }
}

class Log {
  all = $state.raw<Sent[]>([])

  add = (s: Sent) => {
    const one = withoutSecrets(s)
    const rest = this.all.filter((o) => o.method !== one.method || o.path !== one.path || JSON.stringify(o.query) !== JSON.stringify(one.query))
    this.all = [...rest, one].slice(-KEPT)
  }
}

export const sent = new Log()
events.sent = sent.add
addEventListener('hashchange', () => (sent.all = []))

/** A word of a shell. */
export const quoted = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`)

const encoded = (path: string) => path.split('/').map(encodeURIComponent).join('/')
const queryOf = (s: Sent) => Object.entries(s.query ?? {}).map(([k, v]) => [k, String(v)] as [string, string])

/** The request for curl; the token and the server's address come from the environment. */
export function curl(s: Sent): string {
  const words = ['curl -H "X-Vault-Token: $COFFER_TOKEN"']
  if (s.namespace) words.push('-H', quoted(`X-Vault-Namespace: ${s.namespace}`))
  if (s.wrapTTL) words.push('-H', quoted(`X-Vault-Wrap-TTL: ${s.wrapTTL}`))
  if (s.method !== 'GET') words.push('-X', s.method)
  if (s.method === 'PATCH') words.push('-H', quoted('Content-Type: application/merge-patch+json'))
  if (s.body !== undefined) words.push('-d', quoted(JSON.stringify(s.body)))
  const query = new URLSearchParams(queryOf(s)).toString()
  words.push(`"$COFFER_ADDR"${quoted('/v1/' + encoded(s.path) + (query && '?' + query))}`)
  return words.join(' ')
}

/** The same with coffer. */
export function cli(s: Sent): string {
  const isList = s.query?.list === 'true'
  const verb = { GET: isList ? 'list' : 'read', PUT: 'write', POST: 'write', PATCH: 'patch', DELETE: 'delete' }[s.method]
  const words = ['coffer', verb]
  if (s.namespace) words.push(quoted(`-namespace=${s.namespace}`))
  if (s.wrapTTL) words.push(quoted(`-wrap-ttl=${s.wrapTTL}`))
  const fields = isObject(s.body) ? Object.entries(s.body) : []
  if (verb === 'write' && fields.length === 0) words.push('-force')
  words.push(quoted(s.path))
  for (const [k, v] of queryOf(s)) if (k !== 'list') words.push(quoted(`${k}=${v}`))
  const flat = fields.every(([, v]) => typeof v !== 'object' || (Array.isArray(v) && v.every((e) => typeof e === 'string')))
  if (!flat) return `${words.join(' ')} - <<'EOF'\n${JSON.stringify(s.body, null, 2)}\nEOF`
  for (const [k, v] of fields) for (const one of Array.isArray(v) ? v : [v]) words.push(quoted(`${k}=${one}`))
  return words.join(' ')
}
