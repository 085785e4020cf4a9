// Who is signed in. The token lives in this tab's session storage and nowhere else.

import { call, events, Problem, useToken } from './api'
import { notify } from './notices.svelte'
import { traffic } from './traffic.svelte'

const KEY = 'coffer.token'

export interface Self {
  accessor: string
  display_name: string
  policies: string[]
  expire_time: string | null
}

class Session {
  token = $state(sessionStorage.getItem(KEY) ?? '')
  self = $state.raw<Self>()
  /** Why the last session ended, if it was not asked for. */
  ended = $state('')

  constructor() {
    useToken(this.token)
    events.denied = () => void this.check()
    events.warned = (text) => notify(text, 'warning')
  }

  /** Throws a Problem when the token is not valid; then nothing is kept. */
  async signIn(token: string) {
    const { data } = await call<Self>('GET', 'auth/token/lookup-self', { token })
    sessionStorage.setItem(KEY, token)
    useToken(token)
    this.ended = ''
    this.self = data
    this.token = token
  }

  /** Forgets the token here. The server still honours it until it expires. */
  signOut(reason = '') {
    sessionStorage.removeItem(KEY)
    useToken('')
    this.ended = reason
    this.self = undefined
    traffic.denied = false // the next token may be allowed more
    this.token = ''
  }

  async revoke() {
    await call('PUT', 'auth/token/revoke-self')
    this.signOut()
  }

  /** Finds out after a refusal whether the token is still good. */
  async check() {
    const token = this.token
    if (!token) return
    try {
      this.self = (await call<Self>('GET', 'auth/token/lookup-self', { token })).data
    } catch (e) {
      const refused = e instanceof Problem && e.status === 403
      if (refused && this.token === token) this.signOut('Your token is no longer valid. It may have expired or been revoked.')
    }
  }
}

export const session = new Session()
