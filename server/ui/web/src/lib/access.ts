// Who can do what with a secret: what stored policies grant on its paths, and who carries them, as far as the token may see.

import { call, list, Problem, type Sent } from './api'
import { entityNames, groupNames } from './identity'
import { dataPath, isV2, metadataPath, type Mount } from './kv'

/** One thing that can be done with a secret: where, and by which capability. */
export interface Deed {
  title: string
  path: string
  capability: string
}

export function deedsOf(m: Mount, path: string): Deed[] {
  const data = dataPath(m, path)
  const common = [
    { title: 'Read', path: data, capability: 'read' },
    { title: 'Write', path: data, capability: 'update' },
    { title: 'Delete', path: data, capability: 'delete' },
  ]
  if (!isV2(m)) return common
  return [...common, { title: 'Metadata', path: metadataPath(m, path), capability: 'read' }, { title: 'Remove for good', path: metadataPath(m, path), capability: 'delete' }]
}

/** What asks for the deeds of a token that has these policies and no others. */
export const asking = (deeds: Deed[], policies: string[]): Sent => ({
  method: 'POST',
  path: 'sys/capabilities',
  body: { policies, paths: [...new Set(deeds.map((d) => d.path))] },
})

/** The titles of the deeds that a token with these policies may do. Throws a Problem with status 403 if one may not be read. */
export async function allowed(deeds: Deed[], policies: string[], background = false): Promise<{ may: string[]; denied: boolean }> {
  const r = asking(deeds, policies)
  const { data } = await call<Record<string, string[]>>(r.method, r.path, { ...r, background })
  const has = (d: Deed, c: string) => data[d.path]!.includes('root') || data[d.path]!.includes(c)
  return { may: deeds.filter((d) => has(d, d.capability)).map((d) => d.title), denied: deeds.some((d) => data[d.path]!.includes('deny')) }
}

const PARALLEL = 6

/** Does work for each, a few at a time. Gives undefined where it is refused or gone. */
async function each<T, R>(all: T[], work: (one: T) => Promise<R>): Promise<(R | undefined)[]> {
  const done: (R | undefined)[] = all.map(() => undefined)
  let next = 0
  async function lane() {
    for (let i = next++; i < all.length; i = next++) {
      try {
        done[i] = await work(all[i]!)
      } catch (e) {
        if (!(e instanceof Problem && [400, 403, 404].includes(e.status))) throw e
      }
    }
  }
  await Promise.all(Array.from({ length: PARALLEL }, lane))
  return done
}

export interface Grant {
  policy: string
  may: string[]
}

/** What each of the policies grants alone; hidden counts those that the token may not read. */
export async function grantsOf(deeds: Deed[], policies: string[]): Promise<{ grants: Grant[]; hidden: number }> {
  const found = await each(policies, async (policy) => ({ policy, may: (await allowed(deeds, [policy], true)).may }))
  return { grants: found.filter((g): g is Grant => g !== undefined && g.may.length > 0), hidden: found.filter((g) => !g).length }
}

/** At most how many entities and groups are looked through. */
export const LOOKED = 100

export interface Carrier {
  kind: 'entity' | 'group'
  name: string
  policies: string[]
}

/** The entities and groups with any of these policies, and what was not seen of them. */
export async function carriersOf(policies: string[]): Promise<{ carriers: Carrier[]; unseen: string[] }> {
  const unseen: string[] = []
  const carriers: Carrier[] = []
  for (const [kind, many, names] of [['group', 'groups', groupNames], ['entity', 'entities', entityNames]] as const) {
    const all = await names().catch((e) => {
      if (e instanceof Problem && e.status === 403) return undefined
      throw e
    })
    if (!all) {
      unseen.push(`your token may not list ${many}`)
      continue
    }
    if (all.length > LOOKED) unseen.push(`only the first ${LOOKED} of ${all.length} ${many} were looked through`)
    const found = await each(all.slice(0, LOOKED), async (name): Promise<Carrier> => {
      const { data } = await call<{ policies: string[] | null }>('GET', `identity/${kind}/name/${name}`, { background: true })
      return { kind, name, policies: (data.policies ?? []).filter((p) => policies.includes(p)) }
    })
    const hidden = found.filter((f) => !f).length
    if (hidden) unseen.push(`your token may not read ${hidden} of the ${many}`)
    carriers.push(...found.filter((f): f is Carrier => !!f?.policies.length))
  }
  return { carriers, unseen }
}

export const policyNames = () => list('sys/policies/acl')
