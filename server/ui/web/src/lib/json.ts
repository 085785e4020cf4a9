// JSON that survives a round trip: numbers that JavaScript cannot hold keep their text.

const rawJSON: ((text: string) => unknown) | undefined = (JSON as any).rawJSON

type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown

export function parseExact(text: string): any {
  const keep: Reviver = (_key, value, context) =>
    rawJSON && typeof value === 'number' && context?.source && String(value) !== context.source
      ? rawJSON(context.source)
      : value
  return JSON.parse(text, keep as (key: string, value: unknown) => unknown)
}

export type Fields = Record<string, unknown>

export function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** A value as people read it: text as it is, everything else as JSON. */
export function show(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2)
}
