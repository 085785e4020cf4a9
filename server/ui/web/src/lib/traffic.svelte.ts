// Requests per second of the node that answers, from the difference of two readings of its counter.

import { call, Problem } from './api'

export interface Sample {
  at: number // seconds since 1970
  perSecond: number
}

const KEPT = 240 // 20 minutes

class Traffic {
  samples = $state.raw<Sample[]>([])
  denied = $state(false)
  #last?: { at: number; total: number }

  read = async () => {
    if (this.denied) return
    let total = 0
    try {
      const { body } = await call('GET', 'sys/metrics', { query: { format: 'json' }, namespace: '' })
      for (const c of body.Counters) if (c.Name === 'coffer_requests_total') total += c.Value
    } catch (e) {
      this.denied = e instanceof Problem && e.status === 403
      return
    }
    const now = Date.now() / 1000
    const last = this.#last
    this.#last = { at: now, total }
    // A smaller total means that the server was restarted, or that another node answered.
    if (!last || total < last.total || now <= last.at) return
    this.samples = [...this.samples, { at: now, perSecond: (total - last.total) / (now - last.at) }].slice(-KEPT)
  }
}

export const traffic = new Traffic()
