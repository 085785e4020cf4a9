// The status of replication, and what a promotion would mean.

import { call } from './api'
import { ago, duration, number, plural } from './format'
import type { Question } from './notices.svelte'

export interface OtherPrimary {
  epoch: number
  cluster_id: string
  api_address: string
  met_at?: string
}

export interface FormerPrimary {
  cluster_id: string
  cluster_addresses: string[]
  since: string
  last_attempt: string
  reason: string
}

/** The other side of a connection. */
export interface Peer {
  node_id?: string
  cluster_id?: string
  api_address: string
  cluster_address: string
  connection_status: string
  last_heartbeat?: string
}

export interface Lag {
  lag_entries: number
  lag_seconds: number
  last_equal: string
}

export interface Repair {
  cause: string
  started_at: string
  running: boolean
  units: number
  units_all: number
  keys: number
}

export interface Replication extends Lag {
  mode: 'disabled' | 'primary' | 'secondary'
  phase: string
  cluster_id: string
  epoch: number
  epoch_cluster_id: string
  position: string
  role_since: string
  reason: string
  units_quarantined: number
  last_repair: Repair | null
  other_primaries: OtherPrimary[]
  former_primaries: FormerPrimary[]
  // of a primary
  fenced_by?: OtherPrimary
  secondaries?: (Peer & Lag)[]
  // of a secondary
  connection_state?: string
  primary_final?: boolean
  primary_position?: string
  primaries?: Peer[]
  cannot_keep_up?: boolean
  keys_done?: number
  keys_total?: number
}

export interface Conflict {
  path: string
  part?: string
  key: string
  mine: string
  theirs: string
  at: string
}

const path = 'sys/replication/performance/'

export async function replication(): Promise<Replication> {
  return (await call<Replication>('GET', path + 'status', { namespace: '' })).data
}

export async function conflicts(): Promise<Conflict[]> {
  return (await call<{ conflicts: Conflict[] }>('GET', path + 'conflicts', { namespace: '' })).data.conflicts
}

/** Returns what the server says of the promotion: what the operator has to know, and with force what may be lost. */
export async function promote(force: boolean): Promise<string[]> {
  const { body } = await call('POST', path + 'secondary/promote', { body: force ? { force } : {}, namespace: '', quiet: true })
  return body.warnings ?? []
}

/** How many entries a secondary lacks, and for how long. */
export function behind(lag: Lag): string {
  const age = lag.lag_seconds < 1 ? 'less than 1 s' : duration(lag.lag_seconds)
  return `${plural(lag.lag_entries, 'entry', 'entries')}, ${age}`
}

/** A cluster by its id and where its API is. */
export function named(p: OtherPrimary): string {
  return `${p.cluster_id || 'unknown cluster'}, epoch ${number(p.epoch)}${p.api_address ? `, ${p.api_address}` : ''}`
}

/** What a secondary knows of the writes that a promotion would lose. */
export function atStake(s: Replication): string {
  const heard = s.primaries?.[0]?.last_heartbeat
  return [
    heard ? `The primary was last heard ${ago(heard)}, at position ${s.primary_position}.` : 'This node has not heard the primary since it became active.',
    `This cluster is at ${s.position}${s.lag_entries ? `, ${plural(s.lag_entries, 'entry', 'entries')} behind` : ''}.`,
    s.last_equal ? `Both were last equal ${ago(s.last_equal)}.` : 'Both were never known to be equal.',
  ].join(' ')
}

/** The question before a promotion. rejected: one without force was, for a reason that the page shows. */
export function promotion(s: Replication, rejected: boolean): Question & { force: boolean } {
  if (!rejected && (s.primary_final || s.phase === 'demoted')) {
    const text = s.primary_final
      ? "The primary's final word has arrived: it was demoted, and all that it wrote is here. Nothing is lost, and force is not needed."
      : 'This cluster was demoted. If it had secondaries, force is needed: one of them may have been promoted since.'
    return { title: 'Promote this cluster?', text, action: 'Promote', force: false }
  }
  const text =
    s.phase === 'demoted'
      ? 'Make sure first that none of its secondaries was promoted since: there would be two primaries.'
      : `${s.primary_final ? 'Without force this was rejected.' : "The primary's final word has not arrived, so this needs force."} ` +
        `Shared writes that this cluster lacks are lost. ${atStake(s)}` +
        (s.connection_state === 'ready' ? ' The primary is connected: demote it instead, and nothing is lost.' : '')
  return { title: 'Promote with force?', text, action: 'Promote with force', danger: true, typed: 'force', force: true }
}
