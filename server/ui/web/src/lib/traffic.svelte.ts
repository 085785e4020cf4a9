// The metrics of the node that answers: as last read, and requests per second from the difference of two readings.

import { call, Problem } from './api'

export interface Sample {
  at: number // seconds since 1970
  perSecond: number
}

const KEPT = 240 // 20 minutes

class Traffic {
  samples = $state.raw<Sample[]>([])
  /** Gauges and counters without labels, by name. */
  numbers = $state.raw<Record<string, number>>({})
  denied = $state(false)
  #last?: { at: number; total: number }

  read = async () => {
    if (this.denied) return
    let total = 0
    try {
      const { body } = await call('GET', 'sys/metrics', { query: { format: 'json' }, namespace: '' })
      const numbers: Record<string, number> = {}
      for (const m of [...body.Gauges, ...body.Counters]) {
        if (m.Name === 'coffer_requests_total') total += m.Value
        else if (Object.keys(m.Labels).length === 0) numbers[m.Name] = m.Value
      }
      this.numbers = numbers
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
