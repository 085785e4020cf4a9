// Secret sync: how far each secret is at its destinations.

import { call, Problem } from './api'

export interface Health {
  circuit: 'closed' | 'open'
  circuit_open_until?: string
  circuit_code?: string
  circuit_cause?: string
  /** How many secrets have each status; not there for those who do not see them all. */
  links?: Record<string, number>
  drifted?: number
  oldest_unsynced_change?: string
}

export interface Destination {
  type: string
  name: string
  health?: Health
}

const ROOT = 'sys/sync/destinations'

export const pathOf = (d: Destination) => `${ROOT}/${d.type}/${d.name}`

/** The types of destinations, and what people call them. */
export const types: Record<string, string> = {
  'cloud1-sm': 'AWS Secrets Manager',
  'cloud1-ssm': 'AWS Parameter Store',
  'cloud2-kv': 'Azure Key Vault',
  'cloud3-sm': 'GCP Secret Manager',
  repohost: 'GitHub Actions',
  gitlab: 'GitLab CI/CD',
  kubernetes: 'Kubernetes',
  'webhost-project': 'Vercel',
  webhook: 'A receiver of your own',
}

/** What a destination has: where it leads, and how. Sensitive values are masked. */
export interface Stored {
  connection_details: Record<string, unknown>
  options: Record<string, unknown>
}

/** Names that stay at a destination without an owner; the names are the first 1,000. */
export interface LeftBehind {
  total: number
  names: { external_name: string; mount?: string; secret_name?: string; at?: string }[]
}

/** All destinations of the namespace, in one request. */
export async function destinations(background = false): Promise<Destination[]> {
  try {
    const { data } = await call<{ key_info: Record<string, string[]>; health: Record<string, Health> }>('GET', ROOT, { query: { list: 'true' }, background })
    return Object.entries(data.key_info).flatMap(([folder, names]) => {
      const type = folder.replace(/\/$/, '')
      return names.map((name) => ({ type, name, health: data.health[`${type}/${name}`] }))
    })
  } catch (e) {
    if (e instanceof Problem && e.status === 404 && e.errors.length === 0) return []
    throw e
  }
}

/** A secret, or one of its keys, at a destination. */
export interface Linked {
  type?: string
  name?: string
  accessor: string
  mount: string
  secret_name: string
  sub_key: string
  sync_status: string
  external_name: string
  version: number
  attempts: number
  code?: string
  cause?: string
  next_retry?: string
  last_attempt?: string
  updated_at: string
  /** What another client has done to it, as the last check found. */
  drift?: 'changed' | 'missing'
  paused?: boolean
}

export interface Lane {
  name: string
  title: string
  kind: '' | 'good' | 'warning' | 'bad'
}

export const lanes: Lane[] = [
  { name: 'synced', title: 'Synced', kind: 'good' },
  { name: 'flight', title: 'In flight', kind: '' },
  { name: 'retrying', title: 'Retrying', kind: 'warning' },
  { name: 'conflict', title: 'Conflict', kind: 'bad' },
  { name: 'you', title: 'Needs you', kind: 'bad' },
]

/** Where on the board something belongs: what is tried again by itself needs no operator, except where the configuration is wrong. */
export function laneOf(l: Linked): Lane {
  const lane = (name: string) => lanes.find((l) => l.name === name)!
  switch (l.sync_status) {
    case 'SYNCED':
      return lane('synced')
    case 'PENDING':
    case 'UNSYNCED':
    case 'UNSYNCING':
      return lane('flight')
    case 'CONFLICT':
      return lane('conflict')
    case 'CLIENT_SIDE_ERROR':
      return lane('you')
  }
  return lane(l.next_retry ? 'retrying' : 'you')
}

/** The lanes of a destination with the number of its secrets in each. */
export function countsOf(h?: Health): { lane: Lane; n: number }[] {
  const of = (status: string) => laneOf({ sync_status: status, next_retry: 'some time' } as Linked)
  return lanes.map((lane) => ({ lane, n: Object.entries(h?.links ?? {}).reduce((sum, [status, n]) => sum + (of(status) === lane ? n : 0), 0) }))
}

export interface Planned {
  mount: string
  secret_name: string
  sub_key: string
  external_name: string
  action: string
  reason: string
}

/** An action of a plan as a sign: what it does to the name at the destination. "!" needs someone. */
export function signOf(action: string): '+' | '~' | '−' | '!' | '' {
  if (action === 'create' || action === 'recover') return '+'
  if (action === 'update' || action === 'adopt') return '~'
  if (action === 'delete') return '−'
  return action === 'conflict' || action === 'refuse' ? '!' : ''
}
