// Mounts, and the two versions of the key/value engine.

import { call, list, type Options, type Sent } from './api'
import type { Fields } from './json'

export interface Mount {
  path: string // with its trailing slash
  type: string
  description: string
  accessor: string
  uuid: string
  local: boolean
  options: Record<string, string> | null
}

export const isV2 = (m: Mount) => m.type === 'kv' && m.options?.version === '2'

/** Whether the mount can be browsed like folders of secrets. */
export const browsable = (m: Mount) => m.type === 'kv' || m.type === 'cubbyhole'

export const kindOf = (m: Mount) => (m.type === 'kv' ? `kv version ${m.options?.version ?? '1'}` : m.type)

export function mountsOf(byPath: Record<string, Omit<Mount, 'path'>>): Mount[] {
  return Object.entries(byPath)
    .map(([path, m]) => ({ ...m, path }))
    .sort((a, b) => a.path.localeCompare(b.path))
}

/** The secrets engines that the token may see. */
export async function visibleMounts(options?: Options): Promise<Mount[]> {
  const { data } = await call('GET', 'sys/internal/ui/mounts', options)
  return mountsOf(data.secret)
}

export interface VersionInfo {
  created_time: string
  deletion_time: string
  destroyed: boolean
}

export interface Metadata {
  cas_required: boolean
  created_time: string
  updated_time: string
  current_version: number
  custom_metadata: Record<string, string> | null
  delete_version_after: string
  max_versions: number
  versions: Record<string, VersionInfo>
}

/** One version of a secret; data is null when it is deleted or destroyed. */
export interface Secret {
  data: Fields | null
  version?: number
  info?: VersionInfo
}

export type State = 'live' | 'deleted' | 'destroyed'

export function stateOf(v: VersionInfo): State {
  if (v.destroyed) return 'destroyed'
  return v.deletion_time && new Date(v.deletion_time).getTime() <= Date.now() ? 'deleted' : 'live'
}

export const names = (m: Mount, folder: string, options?: Options) => list(m.path + (isV2(m) ? 'metadata/' : '') + folder, options)

/** Where the content of a secret is read and written. */
export const dataPath = (m: Mount, path: string) => m.path + (isV2(m) ? 'data/' : '') + path
export const metadataPath = (m: Mount, path: string) => m.path + (isV2(m) ? 'metadata/' : '') + path

export async function read(m: Mount, path: string, version = 0): Promise<Secret> {
  if (!isV2(m)) return { data: (await call<Fields>('GET', m.path + path)).data }
  const { data } = await call('GET', dataPath(m, path), version ? { query: { version } } : {})
  return { data: data.data, version: data.metadata.version, info: data.metadata }
}

/** What writes a version. text is JSON and is sent as it is; cas is the version it replaces, 0 for none. */
export function writing(m: Mount, path: string, text: string, cas?: number): Sent {
  return { method: 'PUT', path: dataPath(m, path), body: isV2(m) ? `{"options":${JSON.stringify({ cas })},"data":${text}}` : text }
}

export const readMetadata = async (m: Mount, path: string): Promise<Metadata> =>
  (await call<Metadata>('GET', metadataPath(m, path))).data

export const writeMetadata = (m: Mount, path: string, body: Partial<Metadata>) =>
  call('PUT', metadataPath(m, path), { body })

/** Removes the secret with all its versions. */
export const remove = (m: Mount, path: string) =>
  call('DELETE', metadataPath(m, path))

export const changeVersion = (m: Mount, path: string, what: 'delete' | 'undelete' | 'destroy', version: number) =>
  call('PUT', `${m.path}${what}/${path}`, { body: { versions: [version] } })

export type Change = 'added' | 'removed' | 'changed' | 'same'

/** How the keys of a secret changed from one version to a later one. */
export function compare(before: Fields, after: Fields): { key: string; change: Change }[] {
  const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort()
  return keys.map((key) => {
    if (!Object.hasOwn(before, key)) return { key, change: 'added' }
    if (!Object.hasOwn(after, key)) return { key, change: 'removed' }
    return { key, change: JSON.stringify(before[key]) === JSON.stringify(after[key]) ? 'same' : 'changed' }
  })
}
