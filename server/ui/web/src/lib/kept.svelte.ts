// What has been typed and is not saved: in the memory of this tab alone, so that it outlives a change of page and of the token.

import { onDestroy } from 'svelte'
import { namespace } from './route.svelte'

const kept = new Map<string, Kept<any>>()

export class Kept<T> {
  readonly value: T
  /** Whether it was there before this page was opened. */
  restored = $state(false)
  #key: string
  #written: string

  /** text says what the value holds, to see whether it was changed. */
  constructor(
    key: string,
    make: () => T,
    private text: (value: T) => string = (v) => JSON.stringify(v),
  ) {
    this.#key = `${namespace()}\0${key}`
    let fresh = $state(make())
    this.#written = text(fresh as T)
    const found = kept.get(this.#key) as Kept<T> | undefined
    this.value = found ? found.value : (fresh as T)
    this.restored = !!found && this.changed
    kept.set(this.#key, this)
  }

  get changed(): boolean {
    return this.text(this.value) !== this.#written
  }

  /** Forgets it: it was saved, or is not wanted. */
  drop = () => {
    kept.delete(this.#key)
  }

  /** Forgets it unless it was changed. */
  leave = () => {
    if (!this.changed) this.drop()
  }
}

/** A draft that a component keeps while it is there, and leaves behind if it was changed. */
export function keep<T>(key: string, make: () => T): Kept<T> {
  const it = new Kept(key, make)
  onDestroy(it.leave)
  return it
}

export function forgetAll() {
  kept.clear()
}

/** Whether something was typed that another page in this tab would lose. */
export const unsaved = () => [...kept.values()].some((k) => k.changed)

// Reloading would lose it, so the browser asks first.
addEventListener('beforeunload', (e) => {
  if (unsaved()) e.preventDefault()
})
