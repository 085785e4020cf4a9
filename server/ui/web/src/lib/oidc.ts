// Signing in by OpenID Connect: this tab goes to the provider, which sends it back with a code that the server exchanges for a token. If
// something was typed that is not saved, another window goes there, and hands over what it comes back with.

import { call, Problem, type Auth } from './api'
import { unsaved } from './kept.svelte'
import { addressOf, checked, part, popup, type Place } from './provider'
import { go } from './route.svelte'

const KEY = 'coffer.oidc'

/** A login that was started in this tab, kept while it is at the provider. */
interface Started extends Place {
  state: string
  nonce: string
  hash: string
}

/** What the provider sent with the browser. */
export interface Returned {
  query: URLSearchParams
  started?: Started
}

let returned = arrive()

/** Takes what the provider sent out of the address and the history, before anything else happens. */
function arrive(): Returned | undefined {
  const kept = sessionStorage.getItem(KEY)
  sessionStorage.removeItem(KEY)
  if (!location.pathname.endsWith('/oidc/callback')) return
  const query = new URLSearchParams(location.search)
  history.replaceState(null, '', '/ui/')
  if (!kept) return { query }
  const started: Started = JSON.parse(kept)
  go(started.hash || '#/', true)
  return { query, started }
}

/** What the provider sent, once. */
export function takeReturned(): Returned | undefined {
  const taken = returned
  returned = undefined
  return taken
}

const random = () => Array.from(crypto.getRandomValues(new Uint8Array(20)), (b) => b.toString(16).padStart(2, '0')).join('')

const channel = () => new BroadcastChannel(KEY)

/** Waits for the window that comes back with this state. */
function awaited(state: string, stop: AbortSignal): Promise<URLSearchParams | undefined> {
  const c = channel()
  return new Promise<URLSearchParams | undefined>((resolve) => {
    stop.addEventListener('abort', () => resolve(undefined))
    c.onmessage = ({ data }) => {
      const query = new URLSearchParams(data.back)
      if (query.get('state') !== state) return
      c.postMessage({ taken: state })
      resolve(query)
    }
  }).finally(() => setTimeout(() => c.close()))
}

/** Gives what the provider sent to the window that waits for it, and reports whether one does. */
function handedOver(query: URLSearchParams): Promise<boolean> {
  const c = channel()
  return new Promise<boolean>((resolve) => {
    setTimeout(() => resolve(false), 2000)
    c.onmessage = ({ data }) => data.taken === query.get('state') && resolve(true)
    c.postMessage({ back: query.toString() })
  }).finally(() => c.close())
}

/**
 * Goes to the provider. In this tab it returns only if the browser comes back to this very page. With another window it returns the login, or
 * undefined if it was stopped. Call it right in the handler of a click: browsers allow a window only there.
 */
export async function start(place: Place, role: string, stop: AbortSignal): Promise<Auth | undefined> {
  const other = unsaved() ? popup() : null
  try {
    return await login(place, role, other, stop)
  } finally {
    other?.close()
  }
}

async function login(place: Place, role: string, other: Window | null, stop: AbortSignal): Promise<Auth | undefined> {
  const nonce = random()
  // The path is that of Vault's own UI, which is what providers and roles know already.
  const body = { role, client_nonce: nonce, redirect_uri: addressOf('ui', 'vault', 'auth', ...place.mount.split('/'), 'oidc', 'callback') }
  const request = () => call<{ auth_url: string }>('POST', `auth/${place.mount}/oidc/auth_url`, { body, token: '', namespace: place.ns })
  const { data } = await part('OIDC', place, request, (e) => e.hint)
  if (!data.auth_url) {
    throw new Problem(400, ['The server starts no sign-in with this role.'], `The role must have ${body.redirect_uri} in allowed_redirect_uris.`)
  }
  const url = new URL(checked(data.auth_url))
  // With oidc_response_mode=form_post the method has put its own address in place of ours, to which the provider has to post.
  if (url.searchParams.get('redirect_uri') !== body.redirect_uri) {
    if (place.ns) throw new Problem(400, ['The provider would post to the root namespace.'], 'In other namespaces the method needs oidc_response_mode=query.')
    url.searchParams.set('response_mode', 'form_post')
  }
  const started: Started = { ...place, nonce, state: url.searchParams.get('state') ?? '', hash: location.hash }
  if (other) {
    const back = awaited(started.state, stop)
    other.location.replace(url)
    const query = await back
    return query && finish({ query, started })
  }
  if (unsaved()) throw new Problem(0, ['Your browser blocked the sign-in window.'], 'Allow windows of this page: without one, what you typed would be lost.')
  sessionStorage.setItem(KEY, JSON.stringify(started))
  const back = new Promise((resolve) => addEventListener('pageshow', resolve, { once: true }))
  location.assign(url)
  await back
}

/** Has the server check what the provider sent. */
export async function finish({ query, started }: Returned): Promise<Auth> {
  const state = query.get('state')
  if (!started && state && (await handedOver(query))) {
    close()
    throw new Problem(0, ['The sign-in goes on in the window that it was started in.'], 'Close this one.')
  }
  if (!started || !state || state !== started.state) {
    throw new Problem(0, ['This tab did not start the sign-in that your browser came back from.'], 'Start again here.')
  }
  const refused = query.get('error')
  if (refused) throw new Problem(0, [`The provider did not sign you in: ${query.get('error_description') ?? refused}`], 'Start again, or ask those who run it.')
  // Without a code the provider has had it posted to the method, which keeps it under the state.
  const fields = { state, code: query.get('code') ?? 'no_code', client_nonce: started.nonce }
  const request = () => call('GET', `auth/${started.mount}/oidc/callback`, { query: fields, token: '', namespace: started.ns })
  return (await part('OIDC', started, request, () => 'A sign-in works once, and for a few minutes. Start again.')).auth!
}
