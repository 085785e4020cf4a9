// A server with much in it: what a page draws and asks for stays bounded. How long scripts ran is reported, as it depends on the machine.

import assert from 'node:assert/strict'
import { Agent, request } from 'node:http'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { settled, startUse } from './server.js'

const [SECRETS, POLICIES, ASSOCIATIONS] = [10_000, 500, 1000]
const ROWS = 200
const HOOK = 'sys/sync/destinations/webhook/hook'

let use

/** Does n things, thirty-two at a time. */
async function each(n, work) {
  let next = 0
  await Promise.all(Array.from({ length: 32 }, async () => {
    while (next < n) await work(next++)
  }))
}

// fetch takes three times as long.
const agent = new Agent({ keepAlive: true })
const put = (path, body) =>
  new Promise((resolve, reject) =>
    request(`${use.server.url}/v1/${path}`, { method: 'PUT', agent, headers: { 'X-Vault-Token': use.rootToken } }, (response) =>
      response.on('end', () => (response.statusCode < 300 ? resolve() : reject(new Error(`PUT ${path}: ${response.statusCode}`)))).resume(),
    )
      .on('error', reject)
      .end(JSON.stringify(body)),
  )

before(async () => {
  use = await startUse()
  const { api } = use
  await api('POST', 'sys/mounts/team', { type: 'kv', options: { version: '2' } })
  await each(SECRETS, (i) => put(`team/data/${i < ASSOCIATIONS ? 'synced' : 'app'}/s${i}`, { data: { n: String(i) } }))
  await each(POLICIES, (i) => put(`sys/policies/acl/team-${i}`, { policy: `path "team/data/app/s${i}" { capabilities = ["read"] }` }))
  // Secret sync does not connect to this machine: nothing that is associated can go on by itself.
  await api('PUT', HOOK, { url: 'https://127.0.0.1:1/', signing_key: 'k'.repeat(40) })
  await api('POST', `${HOOK}/associations/set`, { mount: 'team', secret_prefix: 'synced/' })
  while (Object.keys((await api('GET', `${HOOK}/associations`)).data.associated_secrets).length < ASSOCIATIONS) await sleep(200)
})

after(async () => {
  agent.destroy()
  await use?.stop()
})

const sees = (locator) => locator.first().waitFor()
const drawn = (page, rows) => page.locator(rows).count()
/** Waits until so many rows are drawn: they come some at a time. */
const rows = (page, n) => page.waitForFunction((n) => document.querySelectorAll('[data-row]').length === n, n)
// By an attribute: looking for a role makes a task of its own in a page of many rows.
const row = (page, id) => page.locator(`[data-row="${id}"]`)

/** Opens a place, works there, and reports the longest task of the page's scripts; requests is how many it may make. */
async function measured(t, place, requests, work) {
  await use.as(use.rootToken, 'home', async (page) => {
    await sees(page.getByRole('heading', { name: 'Home' }))
    await settled(page)
    await page.evaluate(() => {
      window.tasks = []
      new PerformanceObserver((l) => window.tasks.push(...l.getEntries().map((e) => Math.round(e.duration)))).observe({ type: 'longtask' })
    })
    const asked = []
    page.on('request', (r) => r.url().includes('/v1/') && asked.push(new URL(r.url()).pathname))
    await page.goto(`${use.server.url}/ui/#/${place}`)
    await work(page)
    const tasks = await page.evaluate(() => window.tasks)
    t.diagnostic(`${place}: ${asked.length} requests, longest task ${tasks.length ? `${Math.max(...tasks)} ms of ${tasks.length} above 50 ms` : 'below 50 ms'}`)
    assert.ok(asked.length <= requests, `${asked.length} requests: ${asked.join(' ')}`)
  })
}

test(`a folder of ${SECRETS - ASSOCIATIONS} secrets draws ${ROWS} rows, and finds and sorts all of them`, (t) =>
  measured(t, 'secrets/team%2F/list/app/', 10, async (page) => {
    await sees(row(page, 's1000'))
    await sees(page.locator('.title [role=status]', { hasText: '9,000' }))
    await rows(page, ROWS)
    await page.locator('[data-filter]').pressSequentially('s9999')
    await sees(row(page, 's9999'))
    await rows(page, 1)
    await page.locator('[data-filter]').fill('')
    await page.locator('th button').first().click()
    await sees(row(page, 's9999'))
    await rows(page, ROWS)
    await page.locator('.page > .actions .btn', { hasText: 'Next' }).click()
    await sees(page.locator('.page [role=status]', { hasText: '201 to 400 of 9,000' }))
    await sees(row(page, 's9799'))
    await rows(page, ROWS)
  }))

test(`${POLICIES} policies are a table of ${ROWS} rows`, (t) =>
  measured(t, 'policies', 10, async (page) => {
    await sees(row(page, 'team-1'))
    await rows(page, ROWS)
    await page.locator('[data-filter]').fill('team-499')
    await sees(row(page, 'team-499'))
  }))

test(`${ASSOCIATIONS} associations are a board of bounded lanes`, (t) =>
  measured(t, 'sync/webhook/hook', 30, async (page) => {
    await sees(page.locator('[data-lane] button'))
    assert.ok((await drawn(page, '[data-lane] li')) <= ROWS)
  }))

test('the palette finds a policy among them', (t) =>
  measured(t, 'secrets', 40, async (page) => {
    await sees(page.getByRole('heading', { name: 'Secrets' }))
    await page.keyboard.press('Control+k')
    await page.getByRole('combobox', { name: 'Go to a page' }).fill('team-499')
    await sees(page.getByRole('option', { name: /team-499/ }))
    assert.ok((await drawn(page, '[role=option]')) <= ROWS)
  }))
