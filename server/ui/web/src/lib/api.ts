// The one way to the server: every page goes through call.

import { parseExact } from './json'
import { namespace } from './route.svelte'

export type Method = 'GET' | 'PUT' | 'POST' | 'PATCH' | 'DELETE'

/** What the server answered, or the plain document of the status endpoints as `body`. */
export interface Answer<T> {
  status: number
  body: any
  data: T
  auth: Auth | null
  wrap: Wrap | null
}

export interface Auth {
  client_token: string
  accessor: string
  policies: string[]
  lease_duration: number
  renewable: boolean
  /** What is still missing; then there is no token yet. */
  mfa_requirement?: Requirement | null
}

/** The second factors of a login: of each constraint, one of the methods. */
export interface Requirement {
  mfa_request_id: string
  mfa_constraints: Record<string, { any: { id: string; type: string; name?: string; uses_passcode: boolean }[] }>
}

export interface Wrap {
  token: string
  accessor: string
  ttl: number
}

/** A failed request: what the server said, and what can be done about it. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly errors: string[],
    readonly hint = '',
  ) {
    super(errors[0] ?? (status === 404 ? 'There is nothing here.' : `The server answered with status ${status}.`))
  }
}

/** A request as it can be repeated elsewhere; the body is what the page has, with its secrets. */
export interface Sent {
  method: Method
  path: string
  query?: Record<string, string | number>
  body?: unknown
  namespace?: string
  wrapTTL?: string
  /** Fields of the body that are secret, besides those whose names look like it. */
  hidden?: string[]
}

/** Called by call; the session, the status and the frame fill them in. */
export const events = {
  denied: () => {},
  sealed: () => {},
  sent: (_: Sent) => {},
  warned: (_: string) => {},
}

let token = ''

export function useToken(t: string) {
  token = t
}

export interface Options {
  query?: Record<string, string | number>
  /** An object, JSON text that is sent as it is, or a file. */
  body?: unknown
  /** The answer is a file: it is the body, as a Blob. */
  file?: boolean
  /** Instead of the session's token. */
  token?: string
  /** Instead of the one we are in; "" is the root. Without a token, the root is what is meant. */
  namespace?: string
  /** How long the answer is to be kept in a wrapping token. */
  wrapTTL?: string
  /** See Sent. */
  hidden?: string[]
  /** Warnings are not shown as notices: the caller shows them. */
  quiet?: boolean
  /** Asked by the frame, not for what the page shows: a refusal says nothing about the token. */
  background?: boolean
}

export async function call<T = any>(method: Method, path: string, options: Options = {}): Promise<Answer<T>> {
  const headers: Record<string, string> = { 'X-Vault-Request': 'true' }
  const credential = options.token ?? token
  if (credential) headers['X-Vault-Token'] = credential
  const where = options.namespace ?? (credential ? namespace() : '')
  if (where) headers['X-Vault-Namespace'] = where
  if (options.wrapTTL) headers['X-Vault-Wrap-TTL'] = options.wrapTTL
  if (options.body !== undefined) {
    headers['Content-Type'] = options.body instanceof Blob ? 'application/gzip' : method === 'PATCH' ? 'application/merge-patch+json' : 'application/json'
  }
  const init: RequestInit = { method, headers: sendable(headers), cache: 'no-store', credentials: 'omit', referrerPolicy: 'no-referrer' }
  if (options.body !== undefined) {
    init.body = typeof options.body === 'string' || options.body instanceof Blob ? options.body : JSON.stringify(options.body)
  }
  const address = url(path, options.query)
  if (credential && !options.background) events.sent({ method, path, query: options.query, body: options.body, namespace: where, wrapTTL: options.wrapTTL, hidden: options.hidden })
  let response: Response, text: string
  try {
    response = await fetch(address, init)
    if (options.file && response.ok) return { status: response.status, body: await response.blob(), data: undefined as T, auth: null, wrap: null }
    text = await response.text()
  } catch {
    throw new Problem(0, ['The server cannot be reached.'], 'Check that it is running and that your network lets you through, then try again.')
  }
  const body = decode(text)
  // A 404 with data describes something that is there but has no content, such as a deleted version.
  if (response.ok || (response.status === 404 && body?.data)) {
    if (!options.quiet) for (const warning of body?.warnings ?? []) events.warned(warning)
    return { status: response.status, body, data: body?.data, auth: body?.auth ?? null, wrap: body?.wrap_info ?? null }
  }
  const errors: string[] = Array.isArray(body?.errors) ? body.errors : []
  if (response.status === 403 && options.token === undefined && !options.background) events.denied()
  if (response.status === 503) events.sealed()
  throw new Problem(response.status, errors, hint(response.status, errors.join(' '), method, path, options.token !== undefined))
}

/** The names below a path; none when there is nothing. */
export async function list(path: string, options: Options = {}): Promise<string[]> {
  try {
    return (await call<{ keys: string[] }>('GET', path, { ...options, query: { list: 'true' } })).data.keys
  } catch (e) {
    if (e instanceof Problem && e.status === 404 && e.errors.length === 0) return []
    throw e
  }
}

function url(path: string, query: Options['query'] = {}): string {
  const segments = path.split('/')
  if (segments.some((s) => s === '.' || s === '..')) {
    throw new Problem(400, ['A path cannot contain "." or ".." as a segment.'], 'Choose another path.')
  }
  const params = new URLSearchParams(Object.entries(query).map(([k, v]) => [k, String(v)])).toString()
  return '/v1/' + segments.map(encodeURIComponent).join('/') + (params && '?' + params)
}

function sendable(headers: Record<string, string>): Headers {
  try {
    return new Headers(headers)
  } catch {
    throw new Problem(400, ['A token, a namespace or a lifetime has a character that cannot be sent.'], 'Check what you typed.')
  }
}

function decode(text: string): any {
  if (!text) return null
  try {
    return parseExact(text)
  } catch {
    return null
  }
}

function hint(status: number, said: string, method: Method, path: string, typed: boolean): string {
  if (/check-and-set/.test(said)) {
    return /required/.test(said)
      ? 'This secret only takes writes that name the current version. Open its latest version and edit that.'
      : 'This secret was written in the meantime. Open the latest version, compare, and apply your change again.'
  }
  if (/wrapping token is not valid/.test(said)) {
    return 'A wrapping token opens once. If it has not expired and you have not opened it, another person may have: treat what it held as known to them, and tell the person who sent it.'
  }
  if (/promotion is not safe/.test(said)) return 'Nothing was changed.'
  if (/MFA validation failed/.test(said)) return 'A code works once, and not for long. Try again with the one that is shown now.'
  switch (status) {
    case 400:
      if (/not configured/.test(said)) return typed ? 'Whoever runs this server has to finish setting it up. Choose another way to sign in.' : ''
      return method === 'GET' || typed ? '' : 'Nothing was changed. Correct the input and try again.'
    case 403:
      if (typed || !/permission denied/.test(said)) return 'Check what you typed. It may also have expired or been revoked.'
      return `Your token's policies do not cover ${path}. Ask for access, or sign in with another token.`
    case 404:
      return 'It may have been deleted, or the path may be misspelt.'
    case 413:
      return 'Store less in one secret, or split it over several.'
    case 429:
      return 'Wait a moment, then try again.'
    case 503:
      return 'The node is sealed, or the cluster has no leader right now. Try again in a few seconds.'
  }
  return status >= 500 ? "Try again. If it keeps failing, the server's log has the details." : ''
}
