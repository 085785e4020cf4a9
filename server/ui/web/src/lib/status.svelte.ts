// The state of the node, asked for every few seconds without a token.

import { untrack } from 'svelte'
import { call, events, Problem } from './api'

export const INTERVAL = 5000

export interface Seal {
  type: string
  initialized: boolean
  sealed: boolean
  t: number
  n: number
  progress: number
  nonce: string
  recovery_seal?: boolean
  version: string
  coffer_version?: string
  cluster_name?: string
  cluster_id?: string
}

export interface Leader {
  is_self: boolean
  leader_address: string
  active_time?: string
  raft_committed_index?: number
  raft_applied_index?: number
}

class Status {
  seal = $state.raw<Seal>()
  leader = $state.raw<Leader>()
  unreachable = $state(false)

  refresh = async () => {
    try {
      const seal = (await call('GET', 'sys/seal-status', { token: '' })).body as Seal
      this.leader = seal.sealed ? undefined : await leader()
      this.seal = seal
      this.unreachable = false
    } catch (e) {
      this.unreachable = e instanceof Problem && (e.status === 0 || e.status >= 500)
    }
  }

  /** Polls while the page is visible. Returns what ends it. */
  watch(): () => void {
    events.sealed = () => void this.refresh()
    return every(this.refresh)
  }
}

async function leader(): Promise<Leader | undefined> {
  try {
    return (await call('GET', 'sys/leader', { token: '' })).body
  } catch {
    return undefined
  }
}

/**
 * Runs work now, then at each interval and on return to the page, while the page is visible. An effect that calls this does
 * not depend on the state that work reads: work changes that state, so the effect would run again after each response.
 */
export function every(work: () => Promise<unknown>): () => void {
  const visible = () => document.visibilityState === 'visible' && void work()
  const timer = setInterval(visible, INTERVAL)
  document.addEventListener('visibilitychange', visible)
  untrack(() => void work())
  return () => {
    clearInterval(timer)
    document.removeEventListener('visibilitychange', visible)
  }
}

export const status = new Status()
