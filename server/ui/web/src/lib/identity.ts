// Entities and groups: what several pages need of them.

import { call, list, type Method } from './api'

export interface Entity {
  id: string
  name: string
  disabled: boolean
  policies: string[] | null
  group_ids: string[] | null
  metadata: Record<string, string> | null
  creation_time: string
  aliases: { id: string; name: string; mount_path: string; mount_type: string }[] | null
}

export interface Group {
  id: string
  name: string
  type: 'internal' | 'external'
  policies: string[] | null
  metadata: Record<string, string> | null
  member_entity_ids: string[] | null
  member_group_ids: string[] | null
  parent_group_ids: string[] | null
  alias?: { id?: string; name?: string; mount_path?: string } | null
  creation_time: string
}

/** The words of a text: separated by commas, spaces or lines. */
export const words = (text: string) => text.split(/[\s,]+/).filter(Boolean)

/** "name=value" in each line. Lines without "=" are a mistake. */
export function pairs(text: string): Record<string, string> {
  return Object.fromEntries(
    text
      .split('\n')
      .filter((l) => l.trim())
      .map((l) => {
        const at = l.indexOf('=')
        return [l.slice(0, at < 0 ? undefined : at).trim(), at < 0 ? '' : l.slice(at + 1).trim()]
      }),
  )
}

export const lines = (of: Record<string, string> | null) => Object.entries(of ?? {}).map(([k, v]) => `${k}=${v}`).join('\n')

/** The ids of entities or groups that are given by name or by id. */
export async function idsOf(kind: 'entity' | 'group', names: string[]): Promise<string[]> {
  return Promise.all(
    names.map(async (n) => {
      for (const by of ['name', 'id']) {
        const found = await call<{ id: string } | undefined>('POST' as Method, `identity/lookup/${kind}`, { body: { [by]: n } })
        if (found.data?.id) return found.data.id
      }
      throw new Error(n)
    }),
  )
}

/** Names for ids, at most 100; the id where it may not be read. */
export async function namesOf(kind: 'entity' | 'group', ids: string[]): Promise<string[]> {
  return Promise.all(
    ids.slice(0, 100).map((id) =>
      call<{ name: string }>('GET', `identity/${kind}/id/${id}`, { background: true }).then(
        (a) => a.data.name,
        () => id,
      ),
    ),
  )
}

export interface AuthMount {
  path: string
  type: string
  accessor: string
}

/** The auth methods that aliases can be of; none where they may not be listed. */
export async function authMounts(): Promise<AuthMount[]> {
  try {
    const { data } = await call<Record<string, Omit<AuthMount, 'path'>>>('GET', 'sys/auth', { background: true })
    return Object.entries(data).map(([path, m]) => ({ path, type: m.type, accessor: m.accessor }))
  } catch {
    return []
  }
}

export const entityNames = () => list('identity/entity/name')
export const groupNames = () => list('identity/group/name')
