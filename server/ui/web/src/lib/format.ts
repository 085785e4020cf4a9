// Times and numbers for people.

const relative = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto' })
const absolute = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' })

const units: [Intl.RelativeTimeFormatUnit, number][] = [
  ['year', 31557600],
  ['month', 2629800],
  ['day', 86400],
  ['hour', 3600],
  ['minute', 60],
]

export function ago(time: string): string {
  const seconds = (new Date(time).getTime() - Date.now()) / 1000
  if (Number.isNaN(seconds)) return ''
  if (Math.abs(seconds) < 45) return 'just now'
  const [unit, length] = units.find(([, length]) => Math.abs(seconds) >= length) ?? ['minute', 60]
  return relative.format(Math.round(seconds / length), unit)
}

export function exact(time: string): string {
  const date = new Date(time)
  return Number.isNaN(date.getTime()) ? '' : absolute.format(date)
}

/** Seconds as "3 d 4 h", the two largest units. */
export function duration(seconds: number): string {
  if (!seconds) return 'never'
  const parts: string[] = []
  for (const [name, length] of [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]] as const) {
    const n = Math.floor(seconds / length)
    if (n > 0 && parts.length < 2) {
      parts.push(`${n} ${name}`)
      seconds -= n * length
    } else if (parts.length > 0) break
  }
  return parts.join(' ')
}

/** Seconds as "4:05". */
export function clock(seconds: number): string {
  const whole = Math.ceil(seconds)
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, '0')}`
}

const whole = new Intl.NumberFormat()

export function number(n: number): string {
  return whole.format(n)
}

export function plural(n: number, one: string, many = one + 's'): string {
  return `${number(n)} ${n === 1 ? one : many}`
}

/** Bytes as "12.3 GiB". */
export function bytes(n: number): string {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']
  let unit = 0
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024
  return `${unit === 0 ? n : n.toFixed(1)} ${units[unit]}`
}

/** The seconds of a duration such as "1m2.5s", as the server writes them. */
export function seconds(text: string): number {
  const scale: Record<string, number> = { h: 3600, m: 60, s: 1, ms: 1e-3, µs: 1e-6, ns: 1e-9 }
  let sum = 0
  for (const [, n, unit] of text.matchAll(/([\d.]+)(h|ms|m|µs|ns|s)/g)) sum += Number(n) * scale[unit!]!
  return sum
}

/** A text of the server as a sentence. */
export function sentence(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.')
}
