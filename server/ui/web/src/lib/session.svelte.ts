// Who is signed in. The token lives in this tab's session storage and nowhere else.

import { call, events, Problem, useToken } from './api'
import { forgetAll } from './kept.svelte'
import { clock } from './live.svelte'
import { notify } from './notices.svelte'
import { go, link, namespace, trimmed } from './route.svelte'
import { sent } from './sent.svelte'
import { traffic } from './traffic.svelte'

const KEY = 'coffer.token'

export interface Self {
  accessor: string
  display_name: string
  policies: string[]
  expire_time: string | null
  namespace_path: string
  entity_id: string
  renewable: boolean
  ttl: number // seconds; 0 is without end
  creation_ttl: number
}

interface Learnt {
  self?: Self
  namespaces: string[]
}

/** The namespaces below one where a token may do anything. Every valid token may ask, wherever it comes from. */
async function visible(token: string, ns: string): Promise<string[]> {
  const { data } = await call<{ keys: string[] }>('GET', 'sys/internal/ui/namespaces', { token, namespace: ns, background: true })
  return data.keys.map(trimmed)
}

/** Asks what a token is and what it may see. Throws when it is not valid. */
async function learn(token: string, places: string[]): Promise<Learnt> {
  const namespaces = await visible(token, '')
  // A token may look itself up where it comes from, and only that answer says where that is.
  for (const ns of new Set([...places, ...namespaces])) {
    try {
      return { namespaces, self: (await call<Self>('GET', 'auth/token/lookup-self', { token, namespace: ns, background: true })).data }
    } catch (e) {
      if (!(e instanceof Problem && (e.status === 403 || e.status === 404))) throw e
    }
  }
  return { namespaces }
}

const within = (ns: string, parent: string) => !parent || ns === parent || ns.startsWith(parent + '/')

/** A namespace and those above it, up to the root. */
function upwards(ns: string): string[] {
  const parts = ns.split('/')
  return ns ? [ns, ...upwards(parts.slice(0, -1).join('/'))] : ['']
}

/** Whether two tokens are of the same person or program, as far as they tell. */
const same = (a: Self, b: Self) =>
  a.entity_id || b.entity_id ? a.entity_id === b.entity_id : a.display_name === b.display_name && a.policies.join() === b.policies.join()

/** How many seconds before the end a person is warned: five minutes, but at most half of the token's life. */
const warnWithin = (self: Self) => Math.min(300, (self.creation_ttl || 600) / 2)

class Session {
  token = $state(sessionStorage.getItem(KEY) ?? '')
  self = $state.raw<Self>()
  /** Where the token may do anything, without the root. */
  namespaces = $state.raw<string[]>([])
  /** Why the last session ended, if it was not asked for. */
  ended = $state('')
  #until = $state(Infinity) // by this browser's clock, which may differ from the server's
  #checking?: Promise<void>
  #last?: Self // whose drafts are kept

  constructor() {
    useToken(this.token)
    events.denied = () => void this.check()
    events.warned = (text) => notify(text, 'warning')
  }

  /** Throws a Problem when the token is not valid; then nothing is kept. */
  async signIn(token: string, ns: string) {
    if (ns) await visible(token, ns) // it may be misspelt
    const learnt = await learn(token, upwards(ns))
    if (!learnt.self || !this.#last || !same(learnt.self, this.#last)) forgetAll()
    this.#take(learnt)
    sessionStorage.setItem(KEY, token)
    useToken(token)
    this.ended = ''
    if (ns !== namespace()) go(link('secrets', [], '', {}, ns), true)
    this.#stayInside(ns)
    this.token = token
  }

  #take(learnt: Learnt) {
    this.self = learnt.self
    this.namespaces = learnt.namespaces
    this.#until = learnt.self?.expire_time ? Date.now() + learnt.self.ttl * 1000 : Infinity
    if (learnt.self) this.#last = learnt.self
  }

  /** Seconds until the token expires; Infinity if it does not. */
  get left(): number {
    return Math.max(0, (this.#until - clock.now) / 1000)
  }

  get expiring(): boolean {
    return !!this.self && this.left <= warnWithin(this.self)
  }

  /** Extends the token's life by as much as the server allows. */
  async renew() {
    const before = this.self?.expire_time
    await call('POST', 'auth/token/renew-self', { namespace: this.home, body: {} })
    await this.check()
    if (before && this.self?.expire_time === before) notify('This token has reached the end of its life and cannot be extended. Sign in again.', 'warning')
    else notify('Token renewed')
  }

  /** The token's time is over: what was typed stays for the same person. */
  expire() {
    this.#forget('Your token has expired. Sign in again: what you typed is kept in this tab.')
  }

  /** The namespace that the token comes from. */
  get home(): string {
    return trimmed(this.self?.namespace_path ?? '')
  }

  /** Where the token means nothing, its own namespace is shown instead. */
  #stayInside(ns: string) {
    if (!within(ns, this.home) && !this.namespaces.includes(ns)) go(link('secrets', [], '', {}, this.home), true)
  }

  /** Forgets the token here. The server still honours it until it expires. */
  signOut() {
    forgetAll()
    this.#forget('')
  }

  #forget(reason: string) {
    sessionStorage.removeItem(KEY)
    useToken('')
    this.ended = reason
    this.self = undefined
    this.namespaces = []
    sent.all = [] // paths that the next person may not know
    traffic.denied = false // the next token may be allowed more
    this.token = ''
  }

  async revoke() {
    await call('PUT', 'auth/token/revoke-self', this.self && { namespace: this.home })
    this.signOut()
  }

  /** Finds out after a refusal whether the token is still good. */
  check(): Promise<void> {
    return (this.#checking ??= this.#check().finally(() => (this.#checking = undefined)))
  }

  async #check() {
    const token = this.token
    if (!token) return
    try {
      const learnt = await learn(token, this.self ? [this.home] : upwards(namespace()))
      if (this.token !== token) return
      this.#take(learnt)
      this.#stayInside(namespace())
    } catch (e) {
      const refused = e instanceof Problem && e.status === 403
      if (refused && this.token === token) this.#forget('Your token is no longer valid. It may have expired or been revoked.')
    }
  }
}

export const session = new Session()
