// What operators do with a cluster in its pages: nodes, snapshots and schedules, the keys; and who is offered what.

import assert from 'node:assert/strict'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { openPage, settled, startBrowser, startServer } from './server.js'

let server, browser, rootToken, unsealKey, dir

const sees = (locator) => locator.first().waitFor()

async function api(method, path, body, token = rootToken) {
  const response = await fetch(`${server.url}/v1/${path}`, { method, headers: { 'X-Vault-Token': token }, body: body && JSON.stringify(body) })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
  return text ? JSON.parse(text) : null
}

const healthy = async () => {
  while ((await fetch(`${server.url}/v1/sys/health`)).status !== 200) await sleep(50)
}

before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'coffer-e2e-snapshots-'))
  server = await startServer({ more: `snapshots { local_root = "${dir}" }` })
  const { keys_base64, root_token } = await api('PUT', 'sys/init', { secret_shares: 1, secret_threshold: 1 }, '')
  ;[unsealKey, rootToken] = [keys_base64[0], root_token]
  await api('PUT', 'sys/unseal', { key: unsealKey }, '')
  await healthy()
  await api('POST', 'sys/mounts/team', { type: 'kv', options: { version: '2' } })
  browser = await startBrowser()
})

after(async () => {
  await browser?.close()
  await server?.stop()
  await rm(dir, { recursive: true, force: true })
})

/** Opens a place as the holder of a token, and looks afterwards whether anything happened that must not. */
async function as(token, place, work) {
  const { page, context, faults } = await openPage(browser, server)
  try {
    await page.goto(`${server.url}/ui/#/${place}`)
    await page.getByLabel('Token', { exact: true }).fill(token)
    await page.getByRole('button', { name: 'Sign in', exact: true }).click()
    await work(page)
    assert.deepEqual(faults, [])
  } catch (e) {
    await page.screenshot({ path: join(tmpdir(), 'coffer-e2e-operate.png'), fullPage: true })
    throw e
  } finally {
    await context.close()
  }
}

const tab = (page, name) => page.getByRole('navigation', { name: 'About this cluster' }).getByRole('link', { name }).click()

test('the nodes are drawn, with what the cluster can lose', async () => {
  await as(rootToken, 'overview', async (page) => {
    await sees(page.getByRole('img', { name: /^Can lose no node\. n1: leads, log equal, disk ok$/ }))
    await sees(page.locator('#self').getByText(/ms on average$/))
    assert.equal(await page.getByRole('button', { name: 'Change n1' }).count(), 0, 'the active node is neither demoted nor removed')
  })
})

test('a snapshot is taken and restored, and a schedule is written', async () => {
  await api('PUT', 'team/data/app', { data: { v: 'before' } })
  await as(rootToken, 'overview', async (page) => {
    await tab(page, 'Snapshots')
    const file = join(dir, 'taken.snap')
    const downloaded = page.waitForEvent('download')
    await page.getByRole('button', { name: 'Take a snapshot' }).click()
    await (await downloaded).saveAs(file)
    assert.deepEqual([...(await readFile(file)).subarray(0, 2)], [0x1f, 0x8b], 'it is the archive itself')

    await api('PUT', 'team/data/app', { data: { v: 'after' } })
    await page.getByLabel('Restore from a file').setInputFiles(file)
    await page.getByRole('button', { name: 'Restore…' }).click()
    const dialog = page.getByRole('dialog')
    assert.equal(await dialog.getByRole('button', { name: 'Restore and replace' }).isDisabled(), true)
    await dialog.getByRole('textbox').fill('restore')
    await dialog.getByRole('button', { name: 'Restore and replace' }).click()
    await sees(page.locator('.notice', { hasText: 'The snapshot is restored' }))
    await healthy()
    assert.equal((await api('GET', 'team/data/app')).data.data.v, 'before')

    await page.getByRole('button', { name: 'New schedule' }).click()
    await page.getByLabel('Name', { exact: true }).fill('nightly')
    await page.getByRole('button', { name: 'Save', exact: true }).click()
    await sees(page.locator('[data-row=nightly]').getByText('1 d'))
    assert.equal((await api('GET', 'sys/storage/raft/snapshot-auto/config/nightly')).data.retain, 14)
    await page.getByRole('button', { name: 'Change nightly' }).click()
    await page.getByRole('button', { name: 'Delete', exact: true }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete schedule' }).click()
    await sees(page.getByText('There is no schedule'))
  })
})

test('the encryption key is rotated, and the unseal keys are changed with progress', async () => {
  await as(rootToken, 'overview', async (page) => {
    await tab(page, 'Keys')
    const term = page.locator('#term > div', { hasText: 'Term' }).locator('dd')
    const before = Number(await term.innerText())
    await page.getByRole('button', { name: 'Rotate' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Rotate' }).click()
    await sees(term.getByText(String(before + 1), { exact: true }))

    await page.getByLabel('Number of new keys').fill('2')
    await page.getByLabel('How many unseal').fill('2')
    await page.getByRole('button', { name: 'Change the unseal keys' }).click()
    await sees(page.locator('#given', { hasText: '0 of 1 present keys given' }))
    await page.getByLabel('Present unseal key').fill(unsealKey)
    await page.getByRole('button', { name: 'Submit key' }).click()
    await sees(page.locator('#given', { hasText: '0 of 2 new keys given' }))
    const keys = []
    for (const n of [1, 2]) {
      await page.getByRole('button', { name: `Reveal New unseal key ${n}` }).click()
      keys.push(await page.locator('#rekey .once', { hasText: `New unseal key ${n}` }).locator('code').innerText())
    }
    await page.getByLabel('The new keys are in safe places').check()
    await page.getByLabel('New unseal key', { exact: true }).fill(keys[0])
    await page.getByRole('button', { name: 'Submit key' }).click()
    await sees(page.locator('#given', { hasText: '1 of 2 new keys given' }))
    await page.getByLabel('New unseal key', { exact: true }).fill(keys[1])
    await page.getByRole('button', { name: 'Submit key' }).click()
    await sees(page.getByText('2 of 2 unseal a node'))
    const stored = await page.evaluate(() => JSON.stringify([Object.values(localStorage), Object.values(sessionStorage), document.title, location.href, history.state]))
    for (const key of keys) assert.equal(stored.includes(key), false)
    assert.equal((await page.content()).includes(keys[0]), false, 'the shares are gone from the page')
  })
})

test('what may be made under some names only is offered', async () => {
  await api('PUT', 'sys/policies/acl/team-engines', { policy: 'path "sys/mounts" { capabilities = ["read"] } path "sys/mounts/team-*" { capabilities = ["create", "update"] }' })
  await api('PUT', 'sys/policies/acl/tuner', { policy: 'path "sys/mounts" { capabilities = ["read"] } path "sys/mounts/team/tune" { capabilities = ["update"] }' })
  const tokenOf = async (policy) => (await api('POST', 'auth/token/create', { policies: [policy] })).auth.client_token
  await as(await tokenOf('team-engines'), 'engines', (page) => sees(page.getByRole('button', { name: 'Enable an engine' })))
  await as(await tokenOf('tuner'), 'engines', async (page) => {
    await sees(page.getByRole('button', { name: 'Change team/' }))
    assert.equal(await page.getByRole('button', { name: 'Enable an engine' }).count(), 0)
  })
})

test('each tab of the cluster asks for no more than it shows', async () => {
  await as(rootToken, 'secrets', async (page) => {
    await sees(page.getByRole('heading', { name: 'Secrets' }))
    await page.clock.install()
    for (const place of ['overview', 'overview?tab=snapshots', 'overview?tab=keys']) {
      const requests = []
      const count = (r) => r.url().includes('/v1/') && requests.push(new URL(r.url()).pathname)
      page.on('request', count)
      await page.goto(`${server.url}/ui/#/${place}`)
      for (let second = 0; second < 12; second++) {
        await page.clock.runFor(1000)
        await settled(page)
      }
      page.off('request', count)
      assert.ok(requests.length <= 15, `${place}: ${requests.length} requests in 12 seconds: ${requests.join(' ')}`)
    }
  })
})
