// Signing in at a provider: what the ways of doing that have in common.

import { call, Problem, type Answer } from './api'
import { mountsOf, type Mount } from './kv'

/** Where the auth method is mounted; both without slashes around them. */
export interface Place {
  mount: string
  ns: string
}

/** The auth methods that are shown to everybody; none if that cannot be found out. */
export async function listed(ns: string): Promise<Mount[]> {
  try {
    const { data } = await call('GET', 'sys/internal/ui/mounts', { token: '', namespace: ns })
    return mountsOf(data.auth)
  } catch {
    return []
  }
}

/** Sends a part of a login, which needs no token. kind is what users call the auth method. */
export async function part<T>(kind: string, place: Place, request: () => Promise<Answer<T>>, hint: (e: Problem) => string): Promise<Answer<T>> {
  try {
    return await request()
  } catch (e) {
    if (!(e instanceof Problem)) throw e
    if (e.status === 403 && /missing client token/.test(e.message)) { // no auth method answers there without one
      throw new Problem(404, [`There is no ${kind} auth method at ${place.mount}.`], 'Check the mount path and the namespace.')
    }
    throw new Problem(e.status, e.errors, hint(e))
  }
}

/** The address below this server's own that a path has; its segments may have any characters. */
export const addressOf = (...segments: string[]) => `${location.origin}/${segments.map(encodeURIComponent).join('/')}`

export function checked(url: string): string {
  const { protocol } = new URL(url)
  if (protocol !== 'https:' && protocol !== 'http:') throw new Problem(0, ['The sign-in page has an address that cannot be opened.'])
  return url
}

/** An empty window in the middle of this one, or null if the browser refuses. */
export function popup(): Window | null {
  const [width, height] = [500, 600]
  const left = Math.round(screenX + (outerWidth - width) / 2)
  const top = Math.round(screenY + (outerHeight - height) / 2)
  const opened = open('', '', `popup,width=${width},height=${height},left=${left},top=${top}`)
  if (!opened || opened.closed) return null
  opened.document.title = 'Sign in'
  opened.document.documentElement.style.colorScheme = 'light dark'
  return opened
}
