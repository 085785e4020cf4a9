// Where we are, kept behind the "#" of the address: paths of secrets stay out of the logs of servers and proxies.

export interface Route {
  parts: string[]
  query: URLSearchParams
}

function parse(hash: string): Route {
  const [path = '', query = ''] = hash.replace(/^#?\/?/, '').split('?', 2)
  return { parts: path.split('/').map(decoded), query: new URLSearchParams(query) }
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part // typed by hand
  }
}

let current = $state.raw(parse(location.hash))

let moved = false

addEventListener('hashchange', () => {
  moved = true
  current = parse(location.hash)
})

/** Whether this place was reached by a link within the page. */
export function arrived(): boolean {
  return moved
}

export function route(): Route {
  return current
}

export function trimmed(path: string): string {
  return path.trim().replace(/^\/+|\/+$/g, '')
}

/** The namespace that we are in, without slashes around it; "" is the root. */
export function namespace(): string {
  return trimmed(current.query.get('ns') ?? '')
}

/** A link within a namespace. Each argument is one segment, except that a trailing path keeps its slashes. */
export function link(page: string, segments: string[] = [], path = '', query: Record<string, string | number> = {}, ns = namespace()): string {
  let out = '#/' + [page, ...segments].map(encodeURIComponent).join('/')
  if (path) out += '/' + path.split('/').map(encodeURIComponent).join('/')
  const all = ns ? { ...query, ns } : query
  const params = new URLSearchParams(Object.entries(all).map(([k, v]) => [k, String(v)])).toString()
  return params ? out + '?' + params : out
}

export function go(href: string, replace = false) {
  if (replace) location.replace(href)
  else location.hash = href
}
