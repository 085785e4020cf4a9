// How far behind each secondary was while this tab looked: 20 minutes, in memory.

import type { Replication } from './replication'

const KEPT = 240 // 20 minutes, one each five seconds

export interface LagSeries {
  at: number[] // seconds since 1970
  /** Seconds behind, by the name of the secondary; null where it was not there. */
  of: Record<string, (number | null)[]>
}

let series: LagSeries = { at: [], of: {} }
let cluster = ''

/** Adds what a status says, and returns all that is kept of that cluster. */
export function recorded(s: Replication): LagSeries {
  if (cluster !== s.cluster_id) [series, cluster] = [{ at: [], of: {} }, s.cluster_id]
  const now = s.mode === 'primary' ? (s.secondaries ?? []).map((p) => [p.node_id ?? p.cluster_address, p.lag_seconds] as const) : [['this cluster', s.lag_seconds] as const]
  const lags = new Map(now)
  const before = series.at.length
  const of: LagSeries['of'] = {}
  for (const name of new Set([...Object.keys(series.of), ...lags.keys()])) {
    const line = [...(series.of[name] ?? Array<null>(before).fill(null)), lags.get(name) ?? null].slice(-KEPT)
    if (line.some((v) => v !== null)) of[name] = line
  }
  series = { at: [...series.at, Date.now() / 1000].slice(-KEPT), of }
  return series
}
