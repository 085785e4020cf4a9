// Two clusters in replication, as the UI of each shows them: from the first copy over a promotion with force to the conflicts.
// The tests are one story and run in order.

import assert from 'node:assert/strict'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test as run } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { openPage, startBrowser, startServer } from './server.js'

const CLUSTER = 'vault-street'
const us = {}
const eu = {}
let browser

before(async () => {
  browser = await startBrowser()
  for (const cluster of [us, eu]) {
    cluster.server = await startServer({ more: 'free_space_warning = "1048576GiB"' }) // more than any disk has
    const keys = await api(cluster, 'PUT', 'sys/init', { secret_shares: 1, secret_threshold: 1 })
    cluster.token = keys.root_token
    cluster.key = keys.keys_base64[0]
    await unseal(cluster)
  }
})

after(async () => {
  await browser?.close()
  await Promise.all([us, eu].map((cluster) => cluster.server?.stop()))
})

// What follows a failed step could only fail for the same reason.
let broken = false

function test(name, work) {
  run(name, async (t) => {
    if (broken) return t.skip('an earlier step failed')
    try {
      await work()
    } catch (e) {
      broken = true
      for (const [name, { shown }] of Object.entries({ us, eu })) {
        const picture = join(tmpdir(), `coffer-e2e-${name}.png`)
        await shown?.page.screenshot({ path: picture, fullPage: true })
        t.diagnostic(`what the page showed: ${picture}`)
      }
      throw e
    }
  })
}

async function api(cluster, method, path, body) {
  const response = await fetch(`${cluster.server.url}/v1/${path}`, {
    method,
    headers: { 'X-Vault-Token': cluster.token ?? '' },
    body: body && JSON.stringify(body),
  })
  const text = await response.text()
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`)
  return text ? JSON.parse(text) : null
}

/** Repeats work until it returns something, for a minute. */
async function until(what, work) {
  const end = Date.now() + 60_000
  for (let last; ; await sleep(100)) {
    const found = await work().catch((e) => void (last = e))
    if (found) return found
    if (Date.now() > end) throw new Error(`still waiting for ${what}`, { cause: last })
  }
}

async function unseal(cluster) {
  await api(cluster, 'PUT', 'sys/unseal', { key: cluster.key })
  await until('an active node', async () => (await fetch(`${cluster.server.url}/v1/sys/health`)).status === 200)
}

const status = async (cluster) => (await api(cluster, 'GET', 'sys/replication/performance/status')).data
const phase = (cluster, name) => until(`${name}`, async () => (await status(cluster)).phase === name)

/** Opens the replication page of a cluster in a browser of its own. */
async function open(cluster) {
  await cluster.shown?.context.close()
  cluster.shown = await openPage(browser, cluster.server)
  const { page } = cluster.shown
  await page.goto(`${cluster.server.url}/ui/#/overview/replication`)
  await page.getByLabel('Token').fill(cluster.token)
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
  await sees(page.getByRole('heading', { name: 'Replication' }))
  return page
}

const act = async (page, what) => {
  await page.getByRole('button', { name: 'More', exact: true }).click()
  await page.getByRole('button', { name: what }).click()
}
const refresh = (page) => page.getByRole('button', { name: 'Refresh' }).click()
const sees = (locator) => locator.first().waitFor()
const fact = (page, name, value) => page.locator('#replication > div', { has: page.getByText(name, { exact: true }) }).getByText(value)
const card = (page, title) => page.locator('section', { has: page.getByRole('heading', { name: title, exact: true }) })

test('a cluster without replication says so', async () => {
  const page = await open(us)
  await sees(page.getByText('neither a primary nor a secondary'))
  await page.getByRole('link', { name: 'Cluster', exact: true }).click()
  await sees(page.locator('[data-row=n1]').getByText('disk low'))
  const self = page.locator('#self')
  await sees(self.getByText(/^[\d.]+ [KMGTP]iB free$/))
  await sees(self.getByText('low on disk space'))
  await sees(self.getByText('current', { exact: true }))
  await sees(self.getByText('agrees with the majority'))
  await sees(self.locator('div', { hasText: 'Damage found' }).getByText('none'))
})

test('both sides show each other', async () => {
  await api(us, 'PUT', 'sys/policies/acl/admin', { policy: 'path "*" { capabilities = ["create", "read", "update", "patch", "delete", "list", "sudo"] }' })
  await api(us, 'POST', 'sys/auth/userpass', { type: 'userpass' })
  await api(us, 'POST', 'auth/userpass/users/ana', { password: 's3cret', token_policies: 'admin' })
  await api(us, 'POST', 'sys/mounts/team', { type: 'kv', options: { version: '2' } })
  await api(us, 'POST', 'team/data/app', { data: { v: '1' } })
  await api(us, 'POST', 'sys/replication/performance/primary/enable', {})
  const made = await api(us, 'POST', 'sys/replication/performance/primary/secondary-token', { id: 'eu' })
  await api(eu, 'POST', 'sys/replication/performance/secondary/enable', { token: made.wrap_info.token, primary_api_addr: us.server.url })
  eu.token = ''
  await phase(eu, 'streaming')
  eu.token = (await until('a login', () => api(eu, 'POST', 'auth/userpass/login/ana', { password: 's3cret' }))).auth.client_token
  await until('equality at both', async () => (await status(eu)).last_equal && (await status(us)).secondaries[0].last_equal)

  const primary = us.shown.page
  await primary.getByRole('link', { name: 'Replication', exact: true }).click()
  await sees(fact(primary, 'Phase', 'running'))
  const secondary = card(primary, 'Secondaries').getByRole('listitem').filter({ hasText: 'eu' })
  await sees(secondary.getByText('connected', { exact: true }))
  await sees(secondary.locator('time').first())
  await sees(primary.getByRole('img', { name: /^Replication: primary .*; secondary eu, / }))

  await sees(primary.locator('#retained', { hasText: /[\d,]+ entr(y|ies), from [\d,]+ to [\d,]+/ }))
  const chart = primary.getByRole('img', { name: /^Seconds behind in the last 20 minutes: eu / })
  await sees(chart.locator('canvas'))

  const page = await open(eu)
  await sees(page.getByRole('img', { name: /^Seconds behind in the last 20 minutes: this cluster / }))
  await sees(page.getByRole('img', { name: /^Replication: primary .*; secondary .*streaming/ }))
  await sees(fact(page, 'Phase', 'streaming'))
  await sees(fact(page, 'Connection', 'ready'))
  await sees(fact(page, "Primary's final word", 'not arrived'))
  const equal = fact(page, 'Last equal', 'just now')
  await sees(equal)
  assert.match(await equal.getAttribute('title'), /\d:\d\d:\d\d/)
  await sees(card(page, 'Primary').getByText('connected', { exact: true }))
})

test('the question before a promotion says whether force is needed', async () => {
  const { page } = eu.shown
  const dialog = page.getByRole('dialog')
  const promote = page.getByRole('button', { name: 'Promote this cluster' })
  await promote.click()
  await sees(dialog.getByText(/final word has not arrived.*needs force.*last heard just now, at position \d+:\d+/))
  await sees(dialog.getByText('demote it instead, and nothing is lost'))
  assert.equal(await dialog.getByRole('button', { name: 'Promote with force' }).isDisabled(), true)
  await dialog.getByRole('button', { name: 'Cancel' }).click()

  // Outside of the switch-over, too, it is said what a demotion does.
  const old = us.shown.page
  await act(old, 'Demote…')
  await sees(old.getByRole('dialog').getByText('Shared writes are refused everywhere'))
  assert.equal(await old.getByRole('dialog').getByRole('button', { name: 'Demote', exact: true }).isDisabled(), true)
  await old.getByRole('dialog').getByRole('textbox').fill(CLUSTER)
  await old.getByRole('dialog').getByRole('button', { name: 'Demote', exact: true }).click()
  await until('the final word', async () => (await status(eu)).primary_final)
  await refresh(page)
  await sees(fact(page, "Primary's final word", 'arrived'))
  await promote.click()
  await sees(dialog.getByText(/final word has arrived.*force is not needed/))
  await dialog.getByRole('button', { name: 'Cancel' }).click()

  // The demoted cluster becomes the primary again, which takes force as it has a secondary.
  await refresh(us.shown.page)
  await sees(fact(us.shown.page, 'Phase', 'demoted'))
  await us.shown.page.getByRole('button', { name: 'Promote this cluster' }).click()
  await us.shown.page.getByRole('dialog').getByRole('button', { name: 'Promote' }).click()
  await sees(us.shown.page.getByRole('alert').getByText('promotion is not safe now: this cluster was demoted'))
  await us.shown.page.getByRole('button', { name: 'Promote with force' }).click()
  const again = us.shown.page.getByRole('dialog')
  await sees(again.getByText('none of its secondaries was promoted since'))
  assert.match(await us.shown.page.locator('[role=alert]').innerText(), /promotion is not safe/, 'the reason stays on the page')
  await again.getByRole('textbox').fill('force')
  await again.getByRole('button', { name: 'Promote with force' }).click()
  await sees(us.shown.page.locator('#promoted', { hasText: /Promoted by force into epoch \d/ }))
  await phase(eu, 'streaming')
})

test('a switch-over is driven from the checklist, and back again', async () => {
  const step = (page, n) => page.locator(`#switch-over [data-step="${n}"]`)
  const ticked = (page, n) => until(`the tick of step ${n}`, async () => /(^| )done( |$)/.test((await step(page, n).getAttribute('class', { timeout: 1000 })) ?? ''))
  const admit = async (page, id) => {
    await page.getByLabel('Name of the other cluster').fill(id)
    await page.getByRole('button', { name: 'Make the token' }).click()
    await page.getByRole('button', { name: 'Reveal Activation token' }).click()
    const token = await page.locator('#activation .once', { hasText: 'Activation token' }).locator('code').innerText()
    await sees(page.getByText('coffer replication secondary enable - < activation.token'))
    assert.equal((await page.evaluate(() => location.href + document.title + JSON.stringify([history.state, { ...localStorage }, { ...sessionStorage }]))).includes(token), false)
    await page.getByRole('button', { name: 'Done' }).click()
    assert.equal((await page.content()).includes(token), false)
    return token
  }
  for (const [from, to, id] of [[us, eu, 'us'], [eu, us, 'eu']]) {
    const [old, next] = [await open(from), await open(to)]
    for (const page of [old, next]) await page.getByRole('button', { name: 'Switch over…' }).click()
    await sees(old.getByRole('img', { name: /^Seconds behind in the last 20 minutes/ }).locator('canvas'))
    await step(old, 1).getByRole('button', { name: 'Demote this cluster' }).click()
    await old.getByRole('dialog').getByRole('textbox').fill(CLUSTER)
    await old.getByRole('dialog').getByRole('button', { name: 'Demote' }).click()
    await ticked(old, 1)
    await ticked(next, 2) // by itself
    await step(next, 3).getByRole('button', { name: 'Promote it now' }).click()
    await next.getByRole('dialog').getByRole('button', { name: 'Promote' }).click()
    await ticked(next, 3)
    await step(next, 4).getByRole('button', { name: 'Make a token' }).click()
    const token = await admit(next, id)
    await old.getByLabel('API address of the new primary').fill(to.server.url)
    await old.getByLabel('Activation token').fill(token)
    await old.getByRole('button', { name: 'Follow it' }).click()
    for (const page of [old, next]) await sees(page.locator('#switch-over').getByText('done', { exact: true }))
    await phase(from, 'streaming')
    await until('equality', async () => (await status(from)).last_equal)
  }
})

test('a promotion with force says what was last heard, and which former primary has not confirmed', async () => {
  await eu.shown.context.close()
  eu.shown = undefined
  await eu.server.stop({ keep: true })
  await api(us, 'POST', 'team/data/app', { data: { v: 'lost' } })
  us.server.freeze()
  eu.server = await startServer({ kept: eu.server.dir })
  await unseal(eu)
  await until('the reason', async () => (await status(eu)).reason)
  const page = await open(eu)
  await sees(page.locator('#reason'))
  await page.getByRole('button', { name: 'Promote this cluster' }).click()
  const dialog = page.getByRole('dialog')
  await sees(dialog.getByText(/needs force.*has not heard the primary since it became active.*last equal/))
  await dialog.getByRole('textbox').fill('force')
  await dialog.getByRole('button', { name: 'Promote with force' }).click()
  await sees(page.locator('#promoted', { hasText: /last known to be equal: \d{4}-/ }))
  await sees(card(page, 'Former primaries').getByText('May still take writes'))
  await sees(card(page, 'Former primaries').getByText('not confirmed'))
})

test('a fenced primary names the new one, and its conflicts are listed', async () => {
  us.server.resume()
  await phase(us, 'fenced')
  const { page } = us.shown
  await refresh(page)
  await sees(fact(page, 'Fenced by', (await status(eu)).cluster_id))
  await sees(page.locator('#reason', { hasText: 'no longer the primary' }))
  await until('the confirmation', async () => (await status(eu)).former_primaries.length === 0)

  await api(us, 'POST', 'sys/replication/performance/primary/demote', {})
  const made = await api(eu, 'POST', 'sys/replication/performance/primary/secondary-token', { id: 'us' })
  await api(us, 'POST', 'sys/replication/performance/secondary/update-primary', { token: made.wrap_info.token, primary_api_addr: eu.server.url })
  await phase(us, 'streaming')
  await until('the conflicts', async () => (await api(us, 'GET', 'sys/replication/performance/conflicts')).data.conflicts.length > 0)
  await refresh(page)
  const conflict = page.locator('#conflicts').getByRole('listitem').filter({ hasText: 'team/app' })
  await sees(conflict.getByText('version 2'))
  await sees(conflict.getByText(/Here \d+:\d+/))
})

/** Answers a request of a page with the server's response, changed. */
function altered(page, path, change) {
  return page.route(`**/v1/${path}`, async (route) => {
    const response = await route.fetch()
    const json = await response.json()
    change(json.data)
    await route.fulfill({ response, json })
  })
}

test('states that no healthy cluster has are shown', async () => {
  const { page } = us.shown
  await altered(page, 'sys/replication/performance/status', (s) => {
    s.other_primaries = [{ epoch: 7, cluster_id: 'c-other', api_address: 'https://other.example:8200', met_at: s.role_since }]
    s.units_quarantined = 2
  })
  await refresh(page)
  await sees(card(page, 'Other primaries').getByText('c-other, epoch 7, https://other.example:8200'))
  await sees(page.getByText('2 mounts or namespaces differ from the primary after repairs'))

  await altered(page, 'sys/ha-status', (s) => (s.nodes = [...s.nodes, { ...s.nodes[0], node_id: 'n2', active_node: false, healthy: false, disk: 'failing' }]))
  await altered(page, 'sys/storage/raft/autopilot/state', (s) => (s.servers.n2 = { last_index: 5, behind: '1m14.5s' }))
  await page.getByRole('link', { name: 'Cluster', exact: true }).click()
  const node = page.locator('[data-row=n2]')
  await sees(node.getByText('disk failing'))
  await sees(node.getByText('not current'))
  await sees(node.getByText('state 1 min 14 s old'))
})

test('a secondary is removed only after its name was typed', async () => {
  const page = await open(eu)
  await page.getByRole('button', { name: 'Remove us' }).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByRole('textbox').fill('us')
  await dialog.getByRole('button', { name: 'Remove', exact: true }).click()
  await sees(page.getByText('Secondary us removed'))
  await sees(card(page, 'Secondaries').getByText('None is enrolled.'))
  await phase(us, 'revoked')
})

test('replication is disabled on both sides, each after its name was typed', async () => {
  for (const [cluster, mode] of [[us, 'secondary'], [eu, 'primary']]) {
    const page = await open(cluster)
    await act(page, 'Disable replication…')
    const dialog = page.getByRole('dialog')
    await sees(dialog.getByText(mode === 'primary' ? 'No cluster can follow this one any more' : 'This cluster follows no primary any more'))
    assert.equal(await dialog.getByRole('button', { name: 'Disable replication' }).isDisabled(), true)
    await dialog.getByRole('textbox').fill(CLUSTER)
    await dialog.getByRole('button', { name: 'Disable replication' }).click()
    await sees(page.getByText('neither a primary nor a secondary'))
    assert.equal((await api(cluster, 'GET', 'team/data/app')).data.data.v !== undefined, true, 'the data stays')
    assert.equal(await page.getByRole('button', { name: 'More', exact: true }).count(), 0)
  }
})

test('never broke the content security policy, threw, or asked another server', () => {
  assert.deepEqual([...us.shown.faults, ...eu.shown.faults], [])
})
