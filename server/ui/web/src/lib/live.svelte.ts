// Work that is repeated while a page is looked at: bounded timers that stop when the page is hidden.

import { untrack } from 'svelte'

export const INTERVAL = 5000

/**
 * Runs work now, then interval milliseconds after each run has ended and on return to the page, while the page is visible. Returns what ends it.
 * An effect that calls this does not depend on the state that work reads: work changes that state, so the effect would run again
 * after each response.
 */
export function live(work: () => Promise<unknown>, interval = INTERVAL): () => void {
  let timer = 0
  let running = false
  let ended = false
  const run = async () => {
    clearTimeout(timer)
    if (running || ended || document.visibilityState !== 'visible') return
    running = true
    try {
      await work()
    } finally {
      running = false
      if (!ended) timer = window.setTimeout(run, interval)
    }
  }
  document.addEventListener('visibilitychange', run)
  untrack(() => void run())
  return () => {
    ended = true
    clearTimeout(timer)
    document.removeEventListener('visibilitychange', run)
  }
}

/** The time of day in milliseconds, which ticks each second while something shows it. */
class Clock {
  now = $state(Date.now())
  #watched = 0
  #timer = 0

  /** For an effect. */
  watch = () => {
    if (this.#watched++ === 0) this.#timer = window.setInterval(() => (this.now = Date.now()), 1000)
    return () => {
      if (--this.#watched === 0) clearInterval(this.#timer)
    }
  }
}

export const clock = new Clock()
