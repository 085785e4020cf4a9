// Requests to the clusters that test/system/saml has started.

import { readFileSync } from 'node:fs'
import { Agent, request } from 'node:https'

const given = JSON.parse(process.env.COFFER_CLUSTERS ?? '{}')

/**
 * A cluster: its nodes' URLs, the active one's first, and call(). A body is sent as JSON, or as a form if it is a
 * URLSearchParams. Answers are {status, headers, text, body}, the last only if it is JSON. While the cluster elects a leader,
 * as it may on a busy machine, calls are made again.
 */
function cluster({ nodes, token, ca }) {
  const agent = new Agent({ ca: readFileSync(ca), keepAlive: false })
  function once(method, path, body, node, as) {
    const form = body instanceof URLSearchParams
    const text = body && (form ? String(body) : JSON.stringify(body))
    const headers = {
      ...(as && { 'X-Vault-Token': as }),
      ...(text && { 'Content-Type': form ? 'application/x-www-form-urlencoded' : 'application/json', 'Content-Length': Buffer.byteLength(text) }),
    }
    return new Promise((resolve, reject) => {
      const req = request(new URL(path, `${node}/v1/`), { method, headers, agent }, async (res) => {
        try {
          const chunks = await res.toArray()
          const answer = { status: res.statusCode, headers: res.headers, text: Buffer.concat(chunks).toString() }
          if (/json/.test(res.headers['content-type'])) answer.body = JSON.parse(answer.text)
          resolve(answer)
        } catch (e) {
          reject(e)
        }
      })
      req.once('error', reject)
      req.end(text)
    })
  }
  async function call(method, path, body, { node = nodes[0], as = token } = {}) {
    for (const deadline = Date.now() + 30_000; ; ) {
      const answer = await once(method, path, body, node, as)
      if (answer.status !== 503 || Date.now() > deadline) return answer
      await new Promise((resolve) => setTimeout(resolve, 200))
    }
  }
  /** A call that has to succeed. */
  async function must(method, path, body, options) {
    const answer = await call(method, path, body, options)
    if (answer.status >= 300) throw new Error(`${method} ${path}: ${answer.status} ${answer.text.slice(0, 500)}`)
    return answer
  }
  return { nodes, token, ca, call, must }
}

export const us = given.us && cluster(given.us)
export const eu = given.eu && cluster(given.eu)
