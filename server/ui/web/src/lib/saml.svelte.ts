// Signing in by SAML: the identity provider gets a window of its own, and the server is asked until it has the answer.

import { call, Problem, type Auth } from './api'
import { addressOf, checked, part, popup, type Place } from './provider'

interface Started {
  sso_service_url: string
  token_poll_id: string
  verification_code?: string
  expires_in?: number
}

export interface Waiting {
  url: string
  code: string
  /** When the server forgets the login, in milliseconds since 1970. */
  until: number
}

const LIFETIME = 300 // seconds, and never longer
const EAGER = 30_000 // milliseconds of asking each second
const WATCH = 500
const PATIENCE = 5 // failures in a row

// Not about the login: a lost connection, too many requests, a cluster that has no leader right now.
const passing = [0, 429, 503]

/** Whether the browser lets this page make the proof that a login needs. It does on https and on this machine. */
export const provable = window.isSecureContext && !!crypto.subtle

function post<T>(place: Place, what: string, body: object, hint: (e: Problem) => string) {
  return part('SAML', place, () => call<T>('POST', `auth/${place.mount}/${what}`, { body, token: '', namespace: place.ns }), hint)
}

/** What to do about the end of a login. */
const ended = (again: string) => (e: Problem) => {
  if (e.status === 400) return again
  return e.status === 403 ? 'If this should work, ask those who run the server: it keeps what was missing.' : e.hint
}

/** Redeems the code of a login that began at the identity provider. */
export async function redeem(place: Place, code: string): Promise<Auth> {
  const hint = ended('A code works once, and for two minutes. Get a new one from your identity provider.')
  return (await post(place, 'token', { code }, hint)).auth!
}

async function digest(text: string): Promise<string> {
  const sum = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(text))
  return btoa(String.fromCharCode(...new Uint8Array(sum)))
}

/** Where the identity provider's answer is posted to. It must be one of the mount's acs_urls. */
export const acsURL = ({ mount, ns }: Place) => addressOf('v1', ...ns.split('/').filter(Boolean), 'auth', ...mount.split('/'), 'callback')

/** One login at a time. */
export class SamlLogin {
  /** There once the identity provider's address is known, until the login ends. */
  waiting = $state.raw<Waiting>()
  /** blocked: it never opened. lost: it can no longer be seen from here, but may be there. */
  window = $state<'open' | 'blocked' | 'lost'>('open')

  #opened: Window | null = null
  #unseen = 0 // times in a row that the window was not there
  #wake = () => {}
  #stop = () => {}

  /** Hands over what the server answers, if it is not cancelled. Call it right in the handler of a click: browsers allow a window only there. */
  async run(place: Place, role: string, take: (auth: Auth) => Promise<void>) {
    const stop = new AbortController()
    const stopped = new Promise<undefined>((resolve) => stop.signal.addEventListener('abort', () => resolve(undefined)))
    this.#stop = () => stop.abort()
    this.#take(popup())
    const watcher = setInterval(() => this.#watch(), WATCH)
    try {
      const auth = await Promise.race([this.#login(place, role, stop.signal), stopped])
      this.#close()
      if (auth) await take(auth)
    } finally {
      stop.abort()
      clearInterval(watcher)
      this.#close()
      this.waiting = undefined
    }
  }

  #close() {
    this.#opened?.close()
    this.#opened = null
  }

  cancel = () => this.#stop()

  /** Opens the window again. */
  reopen = () => {
    this.#take(popup())
    if (this.waiting) this.#show(this.waiting.url)
  }

  #take(opened: Window | null) {
    this.#opened = opened
    this.#unseen = 0
    this.window = opened ? 'open' : 'blocked'
  }

  #show(url: string) {
    if (this.#opened && !this.#opened.closed) this.#opened.location.replace(url)
  }

  #watch() {
    if (this.window !== 'open') return
    this.#unseen = this.#opened?.closed ? this.#unseen + 1 : 0
    if (this.#unseen < 2) return // the focus comes back a moment later
    // An identity provider may cut its window off from those that opened it, which looks the same as closing it.
    // But who closes a window is back at this one.
    if (document.hasFocus()) this.#wake()
    else this.window = 'lost'
  }

  get #closed() {
    return this.window === 'open' && this.#unseen >= 2
  }

  async #login(place: Place, role: string, stop: AbortSignal): Promise<Auth | undefined> {
    const verifier = crypto.randomUUID()
    const body = { role, acs_url: acsURL(place), client_challenge: await digest(verifier), client_type: 'browser' }
    const hint = (e: Problem) => (/acs_url/.test(e.message) ? `The address of this page makes it ${body.acs_url}` : e.hint)
    const { data } = await post<Started>(place, 'sso_service_url', body, hint)
    if (stop.aborted) return
    const url = checked(data.sso_service_url)
    const lifetime = 1000 * Math.min(data.expires_in || LIFETIME, LIFETIME)
    this.waiting = { url, code: data.verification_code ?? '', until: Date.now() + lifetime }
    this.#show(url)
    const auth = await this.#poll(place, { client_verifier: verifier, token_poll_id: data.token_poll_id }, lifetime, stop)
    if (!stop.aborted) return auth
    // No page waits for this token any more.
    if (auth?.client_token) await call('PUT', 'auth/token/revoke-self', { token: auth.client_token, namespace: place.ns })
  }

  async #poll(place: Place, body: object, lifetime: number, stop: AbortSignal): Promise<Auth | undefined> {
    const began = performance.now()
    const hint = ended('A sign-in works once, and for five minutes. Start again.')
    for (let failures = 0; !stop.aborted; ) {
      const waited = performance.now() - began
      if (waited > lifetime) throw new Problem(0, ['The time for this sign-in is over.'], 'Start again, and finish it within five minutes.')
      await this.#pause(failures || waited > EAGER ? 3000 : 1000)
      if (stop.aborted) return
      const closed = this.#closed // before asking: the answer may have come just before
      try {
        return (await post(place, 'token', body, hint)).auth!
      } catch (e) {
        const status = e instanceof Problem ? e.status : -1
        const pending = status === 401
        if (pending && closed) throw new Problem(0, ['The sign-in window was closed before you were done.'], 'Start again when you are ready.')
        if (pending) failures = 0
        else if (!passing.includes(status) || ++failures === PATIENCE) throw e
      }
    }
  }

  #pause(ms: number): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve
      setTimeout(resolve, ms)
    })
  }
}
