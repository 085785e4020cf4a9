// Pages about who may do what: policies, identities, tokens, engines and auth methods. Each test has a browser context of its own.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import axe from 'axe-core'
import { openPage, startBrowser, startServer } from './server.js'

let server, browser, rootToken

const sees = (locator) => locator.first().waitFor()

async function api(method, path, body, token = rootToken) {
  const response = await fetch(`${server.url}/v1/${path}`, { method, headers: { 'X-Vault-Token': token }, body: body && JSON.stringify(body) })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
  return text ? JSON.parse(text) : null
}

const policy = (name, text) => api('PUT', `sys/policies/acl/${name}`, { policy: text })
const tokenOf = async (body) => (await api('POST', 'auth/token/create', body)).auth.client_token

before(async () => {
  server = await startServer()
  const { keys_base64, root_token } = await api('PUT', 'sys/init', { secret_shares: 1, secret_threshold: 1 }, '')
  await api('PUT', 'sys/unseal', { key: keys_base64[0] }, '')
  rootToken = root_token
  while ((await fetch(`${server.url}/v1/sys/health`)).status !== 200) await sleep(50)
  browser = await startBrowser()
})

after(async () => {
  await browser?.close()
  await server?.stop()
})

/** Opens a place as the holder of a token, and looks afterwards whether anything happened that must not. */
async function as(token, place, work, options) {
  const { page, context, faults } = await openPage(browser, server, options)
  page.setDefaultTimeout(30_000)
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

/** What axe finds serious on the page. */
async function serious(page) {
  await page.evaluate(axe.source + ';0')
  const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa'] }))
  return violations.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => `${v.id}: ${v.nodes[0].target}`)
}

/** Whether a text is anywhere that outlives the page. */
const kept = (page, text) =>
  page.evaluate((t) => JSON.stringify([Object.values(localStorage), Object.values(sessionStorage), document.cookie, document.title, location.href, history.state]).includes(t), text)

/** Replaces what an editor has. */
async function retype(page, editor, text) {
  await editor.click()
  await page.keyboard.press('ControlOrMeta+A')
  await page.keyboard.insertText(text)
}

test('a policy is coloured, what is wrong is marked at its line, and what it allows is simulated', async () => {
  await policy('denies', 'path "team/data/app/hidden" { capabilities = ["deny"] }')
  await as(rootToken, 'policies/new', async (page) => {
    const editor = page.getByLabel('Policy', { exact: true })
    await retype(page, editor, '# a comment\npath "team/data/app/*" {\n  capabilities = ["reed"]\n}')
    await sees(page.locator('.cm-line.fault'))
    await sees(page.getByText(/line 3: .*unknown capability "reed"/))
    const colours = await page.evaluate(() => {
      const spans = [...document.querySelector('.host').shadowRoot.querySelectorAll('.cm-line span')]
      return new Set(spans.map((s) => getComputedStyle(s).color)).size
    })
    assert.ok(colours >= 3, `${colours} colours`)

    await retype(page, editor, 'path "team/data/app/*" {\n  capabilities = ["read"]\n}')
    await page.locator('.cm-line.fault').waitFor({ state: 'detached' })
    const check = async (path) => {
      await page.getByLabel('Path to check').fill(path)
      await page.getByRole('button', { name: 'Check', exact: true }).click()
      await sees(page.locator('#simulated', { hasText: path }))
      return page.locator('#simulated .good').allInnerTexts()
    }
    assert.deepEqual(await check('team/data/app/stripe'), ['may read'])
    assert.deepEqual(await check('team/data/other'), [])
    await page.getByLabel('Together with').fill('denies')
    assert.deepEqual(await check('team/data/app/hidden'), [])
    assert.deepEqual(await serious(page), [])

    await page.getByLabel('Name', { exact: true }).fill('app-reader')
    await page.getByRole('button', { name: 'Save policy' }).click()
    await sees(page.getByText('Policy app-reader saved'))
  })
  assert.match((await api('GET', 'sys/policies/acl/app-reader')).data.policy, /"read"/)
  // Who may not ask is not offered to.
  await policy('policy-reader', 'path "sys/policies/acl/*" { capabilities = ["read", "list"] } path "sys/policies/acl" { capabilities = ["list"] }')
  await as(await tokenOf({ policies: ['policy-reader'] }), 'policies', async (page) => {
    await sees(page.getByRole('link', { name: 'app-reader' }))
    assert.equal(await page.getByText('What would it allow?').count(), 0)
  })
})
