// Starts servers of one node, each with its data in a directory of its own, and a browser.

import { spawn } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { chromium } from 'playwright-core'

const binary = process.env.COFFER_BIN ?? new URL('../../bin/coffer', import.meta.url).pathname

/** A server that is not initialized, or one that was stopped with keep. more: further configuration; retryJoin: a node to join. */
export async function startServer({ more = '', kept = '', retryJoin = '' } = {}) {
  const dir = kept || (await mkdtemp(join(tmpdir(), 'coffer-e2e-')))
  await writeFile(
    join(dir, 'coffer.hcl'),
    `
${more}
cluster_name = "vault-street"
cluster_addr = "127.0.0.1:0"
api_addr = "http://127.0.0.1:0"
ui = true
listener "tcp" {
  address = "127.0.0.1:0"
  cluster_address = "127.0.0.1:0"
  tls_disable = true
}
storage "raft" {
  path = "${dir}/data"
  node_id = "n1"
${retryJoin && `retry_join { leader_api_addr = "${retryJoin}" }`}
}
`,
  )
  const child = spawn(binary, ['server', '-config', join(dir, 'coffer.hcl')], { stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  let tell
  const wake = () => tell?.()
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (text) => {
      output += text
      wake()
    })
  }
  child.once('exit', wake)
  let ready
  while (!(ready = /^coffer: ready at (\S+)$/m.exec(output))) {
    if (child.exitCode !== null) throw new Error(`the server ended:\n${output}`)
    await new Promise((resolve) => (tell = resolve))
  }
  return {
    url: ready[1],
    dir,
    output: () => output,
    freeze: () => child.kill('SIGSTOP'),
    resume: () => child.kill('SIGCONT'),
    async stop({ keep = false } = {}) {
      const ended = new Promise((resolve) => child.once('exit', resolve))
      if (child.exitCode === null && child.signalCode === null && child.kill()) {
        child.kill('SIGCONT') // a frozen one ends, too
        await ended
      }
      if (!keep) await rm(dir, { recursive: true, force: true })
    },
  }
}

export function startBrowser() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  })
}

const underWay = new WeakMap() // the requests of a page that have no answer yet

/** Waits until a page awaits no answer, which the state "networkidle" tells only after a page was loaded as a whole. */
export async function settled(page) {
  const open = underWay.get(page)
  do {
    while (open.size > 0) await sleep(20)
    for (let turn = 0; turn < 2; turn++) await page.evaluate(() => undefined)
  } while (open.size > 0)
}

/**
 * A page that collects what must never happen: violations of the content security policy, errors in scripts,
 * and requests to anywhere but the server.
 */
export async function openPage(browser, server, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, ...options })
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: server.url })
  // Answers that come late, in milliseconds, show where a test looks before there is anything to see.
  const late = Number(process.env.COFFER_LATE_RESPONSES ?? 0)
  if (late) await context.route('**/v1/**', async (route) => sleep(late).then(() => route.continue().catch(() => undefined)))
  const faults = []
  const page = await context.newPage()
  await page.exposeFunction('reportViolation', (text) => faults.push(text))
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (e) => window.reportViolation(`${e.violatedDirective}: ${e.blockedURI}`))
  })
  page.on('pageerror', (e) => faults.push(e.message))
  page.on('console', (m) => {
    // A refused request is an error to the browser and an answer to the page.
    if (m.type() === 'error' && !m.text().startsWith('Failed to load resource')) faults.push(m.text())
  })
  const open = new Set()
  underWay.set(page, open)
  page.on('request', (r) => open.add(r))
  for (const end of ['requestfinished', 'requestfailed']) page.on(end, (r) => open.delete(r))
  page.on('request', (r) => {
    if (!r.url().startsWith(server.url) && !r.url().startsWith('blob:')) faults.push(`request to ${r.url()}`)
  })
  page.setDefaultTimeout(60_000)
  return { page, context, faults }
}

/**
 * A server in use with a browser: api(method, path, body, token) asks it, throwing what is refused; as(token, place, work) opens a place
 * as the holder of a token, and looks afterwards whether anything happened that must not.
 */
export async function startUse(options) {
  const server = await startServer(options)
  let rootToken = ''
  async function api(method, path, body, token = rootToken) {
    const response = await fetch(`${server.url}/v1/${path}`, { method, headers: { 'X-Vault-Token': token }, body: body && JSON.stringify(body) })
    const text = await response.text()
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
    return text ? JSON.parse(text) : null
  }
  const { keys_base64, root_token } = await api('PUT', 'sys/init', { secret_shares: 1, secret_threshold: 1 }, '')
  await api('PUT', 'sys/unseal', { key: keys_base64[0] }, '')
  rootToken = root_token
  while ((await fetch(`${server.url}/v1/sys/health`)).status !== 200) await sleep(50)
  const browser = await startBrowser()

  async function as(token, place, work, options) {
    const { page, context, faults } = await openPage(browser, server, options)
    try {
      await page.goto(`${server.url}/ui/#/${place}`)
      await page.getByLabel('Token', { exact: true }).fill(token)
      await page.getByRole('button', { name: 'Sign in', exact: true }).click()
      await work(page)
      assert.deepEqual(faults, [])
    } finally {
      await context.close()
    }
  }

  return {
    server,
    browser,
    rootToken,
    api,
    as,
    policy: (name, text) => api('PUT', `sys/policies/acl/${name}`, { policy: text }),
    tokenOf: async (body) => (await api('POST', 'auth/token/create', body)).auth.client_token,
    async stop() {
      await browser.close()
      await server.stop()
    },
  }
}

/**
 * The variables of a project of GitLab, on loopback: a destination that other clients change, too, and that fails while failing is true.
 * held is the variables by their keys; configuration is what the server needs to go there.
 */
export async function startGitLab() {
  const lab = { held: new Map(), failing: false }
  const http = createServer(async (req, res) => {
    let text = ''
    for await (const chunk of req) text += chunk
    const body = text ? JSON.parse(text) : {}
    const answer = (status, what) => res.writeHead(status, { 'content-type': 'application/json', 'x-next-page': '' }).end(JSON.stringify(what))
    const key = decodeURIComponent(new URL(req.url, 'http://lab').pathname.split('/variables/')[1] ?? '')
    if (lab.failing) return answer(503, { message: 'maintenance' })
    if (req.url.endsWith('/personal_access_tokens/self')) return answer(200, { id: 1, active: true, revoked: false, scopes: ['api'], expires_at: null })
    if (req.method === 'GET' && !key) return answer(200, [...lab.held.values()])
    if (req.method === 'POST' && lab.held.has(body.key)) return answer(400, { message: { key: ['has already been taken'] } })
    if (req.method !== 'POST' && !lab.held.has(key)) return answer(404, { message: '404 Variable Not Found' })
    if (req.method === 'GET') return answer(200, lab.held.get(key))
    if (req.method === 'DELETE') return lab.held.delete(key), res.writeHead(204).end()
    const one = { variable_type: 'env_var', environment_scope: '*', ...lab.held.get(key), ...body }
    lab.held.set(one.key ?? key, one)
    return answer(req.method === 'POST' ? 201 : 200, one)
  })
  await new Promise((resolve) => http.listen(0, '127.0.0.1', resolve))
  lab.configuration = `sync {
    allow_private_addresses = true
    endpoint "gitlab" { url = "http://127.0.0.1:${http.address().port}" }
  }`
  lab.stop = () => {
    http.closeAllConnections()
    http.close()
  }
  return lab
}
