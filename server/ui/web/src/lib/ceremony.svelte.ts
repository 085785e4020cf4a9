// The keys of a new cluster, from the moment they are made until their keeper says that they are kept.

import { call } from './api'
import { status } from './status.svelte'

export interface Keys {
  keys_base64: string[]
  root_token: string
}

class Ceremony {
  result = $state.raw<Keys>()

  async init(shares: number, threshold: number) {
    const { body } = await call('PUT', 'sys/init', { body: { secret_shares: shares, secret_threshold: threshold }, token: '' })
    this.result = body
    await status.refresh()
  }
}

export const ceremony = new Ceremony()
