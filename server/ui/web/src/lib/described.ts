// Fields as the server describes them: the help of a path, which all may read who may use it.

import { call } from './api'
import { sentence } from './format'
import type { Field } from './mounts'

const kinds: Record<string, Field['kind']> = { boolean: 'check', integer: 'number', number: 'number', duration: 'ttl', list: 'list', map: 'map', object: 'map' }

// Long texts of several lines; what the help does not tell.
const long = /cert|template$/

const label = (name: string) => sentence(name.replaceAll('_', ' ').replace(/\b(id|url|uri|arn|ca|ttl|kms|ipv4|ipv6)\b/gi, (w) => w.toUpperCase())).slice(0, -1)

/** What an operation of a path takes in its body, and what it does. */
export async function described(path: string, operation: string): Promise<{ about: string; fields: Field[] }> {
  const help: string = (await call<{ help: string }>('GET', path, { query: { help: 1 }, background: true })).data.help
  const part = help.split(/^(?=[A-Z]+ )/m).find((p) => p.startsWith(`${operation} `)) ?? ''
  const fields = [...part.matchAll(/^    (\w+) \((\w+), in the body(.*)\)\n        (.*)$/gm)].map(([, name, type, traits, text]): Field => {
    const choices = [.../, one of ((?:"[^"]*"(?:, | or | and )?)+)/.exec(traits!)?.[1]?.matchAll(/"([^"]*)"/g) ?? []].map((m) => m[1]!)
    const kind = /, sensitive/.test(traits!) ? 'secret' : choices.length > 0 ? 'choice' : (kinds[type!] ?? (long.test(name!) ? 'area' : 'text'))
    return { name: name!, label: label(name!), kind, choices, help: text, required: /, required/.test(traits!), initial: /, default (.*)$/.exec(traits!)?.[1] ?? '' }
  })
  return { about: /^ {4}(\S.*)$/m.exec(part)?.[1] ?? '', fields }
}
