// Which pages the token is offered.

import { May } from './may.svelte'
import { namespace } from './route.svelte'
import { pages, type Page } from './routes'
import { session } from './session.svelte'

class Nav {
  #here = $state.raw<May>()
  #cluster = $state.raw<May>()

  /** Asks again, for another token or namespace. */
  load() {
    const paths = (clusterWide: boolean) => pages.filter((p) => !!p.clusterWide === clusterWide && p.needs).map((p) => p.needs![0])
    const root = namespace() === ''
    this.#here = new May([...paths(false), ...(root ? paths(true) : [])])
    this.#cluster = root ? this.#here : session.home ? undefined : new May(paths(true), '')
  }

  offers(page: Page): boolean {
    if (!page.needs) return true
    const [path, ...capabilities] = page.needs
    return !!(page.clusterWide ? this.#cluster : this.#here)?.can(path, ...capabilities)
  }

  /** Resolved when it is known what is offered. */
  known = () => Promise.all([this.#here?.asked, this.#cluster?.asked])

  lists = (path: string) => !!this.#here?.can(path, 'list')
}

export const nav = new Nav()
