// The state of the node, asked for every ten seconds without a token.

import { call, events, Problem } from './api'
import { live } from './live.svelte'

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
  /** Of a node that is in no cluster: those it tries to join. */
  joining?: { leader_addresses: string[]; join_error: string }
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
    return live(this.refresh, 10_000)
  }
}

async function leader(): Promise<Leader | undefined> {
  try {
    return (await call('GET', 'sys/leader', { token: '' })).body
  } catch {
    return undefined
  }
}

export const status = new Status()
