// What the token may do: one request for all that a page asks about, so that nothing is offered that would be refused.

import { call } from './api'
import { namespace } from './route.svelte'
import { session } from './session.svelte'

export type Capability = 'create' | 'read' | 'update' | 'patch' | 'delete' | 'list' | 'sudo'

interface Granted {
  exact_paths: Record<string, { capabilities: string[] }>
  glob_paths: Record<string, { capabilities: string[] }>
}

/** What is allowed for some names directly under a path: "sys/mounts/team-*" under "sys/mounts/". */
function under({ exact_paths, glob_paths }: Granted, path: string): string[] {
  return [...Object.entries(exact_paths), ...Object.entries(glob_paths)]
    .filter(([of, { capabilities }]) => of.startsWith(path) && !of.slice(path.length).includes('/') && !capabilities.includes('deny'))
    .flatMap(([, { capabilities }]) => capabilities)
}

let open = $state(0)

/** Whether it is not known yet what the token may do, so that a page may miss a part. */
export const asking = () => open > 0

/**
 * What the token may do at these paths, in the namespace we are in or the one that is named. A path that ends in "*" stands for
 * names that are not known yet. May is asked once; make one for each page.
 */
export class May {
  #found = $state.raw<Record<string, string[]>>()
  /** Resolved when the answer is there. */
  readonly asked: Promise<void>

  constructor(paths: string[], ns = namespace()) {
    this.asked = this.#ask([...new Set(paths)], ns)
  }

  // Every token may ask in the namespace that it comes from, about those below, too.
  async #ask(paths: string[], ns: string) {
    if (paths.length === 0) return
    open++
    await this.#answer(paths, ns).finally(() => open--)
  }

  async #answer(paths: string[], ns: string) {
    if (!session.self) await session.check()
    const home = session.self && (!session.home || ns === session.home || ns.startsWith(session.home + '/')) ? session.home : ns
    const below = ns.slice(home.length).replace(/^\//, '')
    const full = (path: string) => (below ? `${below}/${path}` : path)
    try {
      const { data } = await call('POST', 'sys/capabilities-self', { body: { paths: paths.map(full) }, namespace: home, background: true })
      const found: Record<string, string[]> = Object.fromEntries(paths.map((p) => [p, data[full(p)]]))
      // Not all new names are allowed; perhaps some are.
      const some = paths.filter((p) => p.endsWith('*') && !['root', 'create', 'update'].some((c) => found[p]!.includes(c)))
      if (some.length > 0) {
        const all = (await call<Granted>('GET', 'sys/internal/ui/resultant-acl', { namespace: home, background: true })).data
        for (const p of some) found[p] = [...found[p]!, ...under(all, full(p).slice(0, -1))]
      }
      this.#found = found
    } catch {
      this.#found = Object.fromEntries(paths.map((p) => [p, ['root']])) // not known: the server decides
    }
  }

  /** Whether all these are allowed; not before the answer is there. */
  can(path: string, ...wanted: Capability[]): boolean {
    const found = this.#found?.[path] ?? []
    return found.includes('root') || (found.length > 0 && wanted.every((c) => found.includes(c)))
  }

  /** Whether something can be written there that may be there already. */
  write = (path: string) => this.can(path, 'create') || this.can(path, 'update')

  get known(): boolean {
    return this.#found !== undefined
  }
}
