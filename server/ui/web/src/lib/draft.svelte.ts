// A secret being written: as rows of keys and texts, or as JSON.

import { isObject, parseExact, type Fields } from './json'

export interface Row {
  id: number
  key: string
  value: string
}

let next = 0
const row = (key = '', value = ''): Row => ({ id: next++, key, value })

const flat = (data: Fields) => Object.values(data).every((v) => typeof v === 'string')

export class Draft {
  mode = $state<'fields' | 'json'>('fields')
  rows = $state<Row[]>([])
  text = $state('')

  constructor(data: Fields) {
    if (flat(data)) this.rows = this.#rowsOf(data)
    else {
      this.mode = 'json'
      this.text = JSON.stringify(data, null, 2)
    }
  }

  #rowsOf(data: Fields): Row[] {
    const rows = Object.entries(data).map(([key, value]) => row(key, value as string))
    return rows.length > 0 ? rows : [row()]
  }

  add() {
    this.rows.push(row())
  }

  remove(id: number) {
    this.rows = this.rows.filter((r) => r.id !== id)
    if (this.rows.length === 0) this.add()
  }

  #used(): Row[] {
    return this.rows.filter((r) => r.key !== '' || r.value !== '')
  }

  #parsed(): unknown {
    try {
      return parseExact(this.text)
    } catch {
      return undefined
    }
  }

  /** What keeps the draft from being saved, or "". */
  get fault(): string {
    if (this.mode === 'json') {
      const parsed = this.#parsed()
      if (parsed === undefined) return 'This is not valid JSON yet.'
      return isObject(parsed) ? '' : 'A secret is a JSON object: { "key": "value" }.'
    }
    const keys = this.#used().map((r) => r.key)
    if (keys.includes('')) return 'A value has no key.'
    const twice = keys.find((k, i) => keys.indexOf(k) !== i)
    if (twice !== undefined) return `The key "${twice}" is there twice.`
    return keys.length === 0 ? 'A secret needs at least one key.' : ''
  }

  /** The JSON that is stored. In JSON mode it is the text as written. */
  get json(): string {
    if (this.mode === 'json') return this.text
    return JSON.stringify(Object.fromEntries(this.#used().map((r) => [r.key, r.value])))
  }

  /** Why the rows cannot show what the JSON says, or "". */
  get onlyJSON(): string {
    if (this.mode === 'fields') return ''
    if (this.text.trim() === '') return ''
    const parsed = this.#parsed()
    if (!isObject(parsed)) return 'Correct the JSON to edit it as fields.'
    return flat(parsed) ? '' : 'Values other than text can only be edited as JSON.'
  }

  toJSON() {
    this.text = JSON.stringify(Object.fromEntries(this.#used().map((r) => [r.key, r.value])), null, 2)
    this.mode = 'json'
  }

  toFields() {
    if (this.onlyJSON) return
    this.rows = this.#rowsOf(this.text.trim() === '' ? {} : (this.#parsed() as Fields))
    this.mode = 'fields'
  }
}
