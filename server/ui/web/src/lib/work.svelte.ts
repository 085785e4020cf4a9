// What a page shows while it loads and after it failed.

import { onMount } from 'svelte'
import { Problem } from './api'

function problem(e: unknown): Problem {
  if (e instanceof Problem) return e
  console.error(e)
  return new Problem(0, ['Something went wrong in this page.'], 'Reload it. The details are in the browser console.')
}

/** Data that is loaded when the component starts, and again on request. */
export class Loaded<T> {
  value = $state.raw<T>()
  problem = $state.raw<Problem>()
  loading = $state(true)
  #run = 0

  constructor(private load: () => Promise<T>) {
    onMount(() => void this.reload())
  }

  reload = async () => {
    const run = ++this.#run
    const promise = this.load()
    this.loading = true
    try {
      const value = await promise
      if (run !== this.#run) return
      this.value = value
      this.problem = undefined
    } catch (e) {
      if (run !== this.#run) return
      this.value = undefined
      this.problem = problem(e)
    }
    this.loading = false
  }
}

/** Something a person starts: once at a time, and its failure stays until the next attempt. */
export class Action {
  busy = $state(false)
  problem = $state.raw<Problem>()

  /** Reports whether it worked. */
  run = async (work: () => Promise<unknown>): Promise<boolean> => {
    if (this.busy) return false
    this.busy = true
    this.problem = undefined
    try {
      await work()
      return true
    } catch (e) {
      this.problem = problem(e)
      return false
    } finally {
      this.busy = false
    }
  }

  submit = (work: () => Promise<unknown>) => (event: SubmitEvent) => {
    event.preventDefault()
    void this.run(work)
  }
}
