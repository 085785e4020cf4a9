// Signing in by OpenID Connect: this tab goes to the provider, which sends it back with a code that the server exchanges for a token.

import { call, Problem, type Auth } from './api'
import { addressOf, checked, part, type Place } from './provider'
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

/** Goes to the provider. It returns only if the browser comes back to this very page. */
export async function start(place: Place, role: string) {
  const nonce = random()
  // The path is that of Vault's own UI, which is what providers and roles know already.
  const body = { role, client_nonce: nonce, redirect_uri: addressOf('ui', 'vault', 'auth', ...place.mount.split('/'), 'oidc', 'callback') }
  const request = () => call<{ auth_url: string }>('POST', `auth/${place.mount}/oidc/auth_url`, { body, token: '', namespace: place.ns })
  const { data } = await part('OIDC', place, request, (e) => e.hint)
  if (!data.auth_url) {
    throw new Problem(400, ['The server starts no sign-in with this role.'], `The role must have ${body.redirect_uri} in allowed_redirect_uris.`)
  }
  const url = checked(data.auth_url)
  const started: Started = { ...place, nonce, state: new URL(url).searchParams.get('state') ?? '', hash: location.hash }
  sessionStorage.setItem(KEY, JSON.stringify(started))
  const back = new Promise((resolve) => addEventListener('pageshow', resolve, { once: true }))
  location.assign(url)
  await back
}

/** Has the server check what the provider sent. */
export async function finish({ query, started }: Returned): Promise<Auth> {
  const state = query.get('state')
  if (!started || !state || state !== started.state) {
    throw new Problem(0, ['This tab did not start the sign-in that your browser came back from.'], 'Start again here.')
  }
  const refused = query.get('error')
  if (refused) throw new Problem(0, [`The provider did not sign you in: ${query.get('error_description') ?? refused}`], 'Start again, or ask those who run it.')
  const fields = { state, code: query.get('code') ?? '', client_nonce: started.nonce }
  const request = () => call('GET', `auth/${started.mount}/oidc/callback`, { query: fields, token: '', namespace: started.ns })
  return (await part('OIDC', started, request, () => 'A sign-in works once, and for a few minutes. Start again.')).auth!
}
