// Signing in to the web UI with an OpenID provider, in a real browser: test/system/plugin starts the cluster and the provider.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { openPage, startBrowser } from '../server.js'

const node = process.env.COFFER_UI
const issuer = process.env.COFFER_ISSUER

let browser
before(async () => (browser = await startBrowser()))
after(() => browser.close())

/** Runs work with a page of a browser without a login. What its content security policy rejects fails the test. */
async function withPage(work) {
  const { page, context, faults } = await openPage(browser, { url: node }, { ignoreHTTPSErrors: true })
  try {
    await work(page)
    assert.deepEqual(faults.filter((f) => !f.startsWith(`request to ${issuer}/`)), [])
  } finally {
    await context.close()
  }
}

/** The provider's form. */
async function fill(page, name, password, button = 'Log in') {
  await page.waitForURL(`${issuer}/interaction/*`)
  await page.getByLabel('Name').fill(name)
  await page.getByLabel('Password').fill(password)
  await page.getByRole('button', { name: button, exact: true }).click()
}

const stored = (page) => page.evaluate(() => ({ ...sessionStorage }))

/** The addresses in the history of the tab, as far as the UI's own pages go. */
async function history(page) {
  const client = await page.context().newCDPSession(page)
  const { entries } = await client.send('Page.getNavigationHistory')
  return entries.map((e) => e.url).filter((url) => url.startsWith(node))
}

async function signedIn(page) {
  await page.waitForURL(`${node}/ui/**`)
  const problem = page.getByRole('alert').filter({ hasText: /\S/ })
  const main = page.getByRole('navigation', { name: 'Main' })
  await main.or(problem).first().waitFor()
  if (!(await main.isVisible())) assert.fail(`the UI says: ${await problem.first().textContent()}`)
  const keys = await stored(page)
  assert.deepEqual(Object.keys(keys), ['coffer.token'])
  for (const url of [page.url(), ...(await history(page))]) assert.doesNotMatch(url, /code=|state=|callback|hvs\./)
  return keys['coffer.token']
}

test('the UI offers OIDC, goes to the provider, and returns to where it was', async () => {
  await withPage(async (page) => {
    await page.goto(`${node}/ui/#/secrets/kv/app`)
    const button = page.getByRole('button', { name: 'Sign in with OIDC', exact: true })
    await button.waitFor() // as the mount is shown to everybody
    assert.equal(await page.getByLabel('Role', { exact: true }).inputValue(), '')
    await button.click()
    await fill(page, 'ada', 'wrong')
    await page.getByRole('alert').getByText('Wrong name or password.').waitFor()
    await fill(page, 'ada', 'correct horse')
    const token = await signedIn(page)
    assert.equal(await page.evaluate(() => location.pathname + location.hash), '/ui/#/secrets/kv/app')
    const read = await page.evaluate(async (t) => (await fetch('/v1/kv/app', { headers: { 'X-Vault-Token': t } })).status, token)
    assert.equal(read, 200)
  })
})

test('a mount with a path of its own, in a namespace', async () => {
  await withPage(async (page) => {
    await page.goto(`${node}/ui/#/secrets?ns=team`)
    await page.getByRole('option', { name: 'sso/people' }).waitFor({ state: 'attached' })
    await page.getByLabel('Role', { exact: true }).fill('dev')
    await page.getByRole('button', { name: 'Sign in with OIDC', exact: true }).click()
    await fill(page, 'ada', 'correct horse')
    await signedIn(page)
    assert.match(page.url(), /ns=team/)
  })
})

test('the UI says why there is no token', async () => {
  await withPage(async (page) => {
    const alert = page.getByRole('alert')
    await page.goto(`${node}/ui/`)
    const role = page.getByLabel('Role', { exact: true })
    const button = page.getByRole('button', { name: 'Sign in with OIDC', exact: true })
    await role.fill('staff') // it does not allow the UI's address
    await button.click()
    await alert.getByText(`${node}/ui/vault/auth/oidc/oidc/callback`).waitFor()
    await role.fill('nobody')
    await button.click()
    await alert.getByText('could not be found').waitFor()
    await role.fill('')
    await button.click()
    await fill(page, '', '', 'Cancel')
    await alert.getByText('The user said no.').waitFor()
    assert.deepEqual(await stored(page), {})

    await button.click()
    await page.waitForURL(`${issuer}/interaction/*`)
    await page.goBack() // to a page that takes another attempt
    await button.click()
    await page.waitForURL(`${issuer}/interaction/*`)
    await page.goto(`${node}/ui/vault/auth/oidc/oidc/callback?state=st_of_another&code=stolen`)
    await alert.getByText('did not start the sign-in').waitFor()
    assert.doesNotMatch(page.url(), /stolen/)
  })
})
