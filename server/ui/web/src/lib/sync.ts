// Secret sync: how far each secret is at its destinations.

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

/** Where on the board something belongs: what is tried again by itself needs nobody, except where the configuration is wrong. */
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
