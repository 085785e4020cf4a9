// The whole UI against a real server, as a person would use it: from an empty server to a sealed one.
// The tests are one story and run in order.

import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test as run } from 'node:test'
import { openPage, startBrowser, startServer } from './server.js'

let server, browser, context, page, faults
let keys, rootToken

before(async () => {
  server = await startServer()
  browser = await startBrowser()
  ;({ context, page, faults } = await openPage(browser, server))
})

after(async () => {
  await browser?.close()
  await server?.stop()
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
      const picture = join(tmpdir(), 'coffer-e2e.png')
      await page?.screenshot({ path: picture })
      t.diagnostic(`what the page showed: ${picture}`)
      throw e
    }
  })
}

const button = (name) => page.getByRole('button', { name, exact: true })
const heading = (name) => page.getByRole('heading', { name, exact: true })
const field = (name) => page.getByLabel(name, { exact: true })
const notice = (text) => page.locator('.notice', { hasText: text })
const visit = (page_) => page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: page_ }).click()

/** Waits until the page shows what is expected. */
const sees = (locator) => locator.first().waitFor()

async function unseal() {
  for (const [i, key] of keys.slice(0, 2).entries()) {
    await sees(page.locator('#unseal-progress', { hasText: `${i} of 2` }))
    await field('Unseal key').fill(key)
    await button('Submit key').click()
  }
}

async function signIn(token) {
  await sees(heading('Sign in'))
  await field('Token').fill(token)
  await button('Sign in').click()
}

async function api(method, path, body, token = rootToken) {
  const response = await fetch(`${server.url}/v1/${path}`, {
    method,
    headers: { 'X-Vault-Token': token },
    body: body && JSON.stringify(body),
  })
  const text = await response.text()
  return { status: response.status, body: text ? JSON.parse(text) : null }
}

test('initializes an empty server and shows the keys once', async () => {
  await page.goto(server.url)
  await sees(heading('Initialize this cluster'))
  await field('Number of keys').fill('2')
  await sees(page.getByText('cannot be more than the number of keys'))
  assert.equal(await button('Create the keys').isDisabled(), true)
  await field('Number of keys').fill('3')
  await field('Needed to unseal').fill('2')
  await button('Create the keys').click()

  await sees(heading('Keep these keys'))
  assert.equal(await button('Continue to unseal').isDisabled(), true)
  const [download] = await Promise.all([page.waitForEvent('download'), button('Download').click()])
  const file = await readFile(await download.path(), 'utf8')
  keys = [...file.matchAll(/Unseal key \d: (\S+)/g)].map((m) => m[1])
  rootToken = file.match(/Initial root token: (\S+)/)[1]
  assert.equal(keys.length, 3)
  assert.equal((await page.locator('main').innerText()).includes(keys[0]), false, 'the keys are hidden until asked for')
  await button('Reveal Unseal key 1').click()
  assert.equal((await page.locator('main').innerText()).includes(keys[0]), true)

  await page.getByLabel('The keys and the root token are in safe places').check()
  await button('Continue to unseal').click()
})

test('unseals with progress, and refuses a wrong key in the words of the server', async () => {
  await sees(heading('Unseal this node'))
  await sees(page.getByRole('status', { name: 'Status: Sealed' }))
  await field('Unseal key').fill('not a key')
  await button('Submit key').click()
  await sees(page.getByRole('alert'))
  await unseal()
  await sees(heading('Sign in'))
})

test('signs in with a token that stays in the tab', async () => {
  await signIn('hvs.wrong')
  await sees(page.getByRole('alert'))
  await signIn(rootToken)
  await sees(heading('Secrets'))
  await sees(page.getByRole('status', { name: 'Status: Unsealed, active' }))
  const stored = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie, Object.values(sessionStorage)])
  assert.deepEqual(stored, ['{}', '', [rootToken]])
  await page.reload()
  await sees(heading('Secrets'))
})

test('enables, describes and lists an engine', async () => {
  await visit('Engines')
  await button('Enable an engine').click()
  await field('Path').fill('/team/')
  await field('Description').fill('Of the team')
  await button('Enable').click()
  await sees(notice('Engine enabled at team/'))
  const row = page.locator('[data-mount="team/"]')
  await sees(row.getByText('kv version 2'))
  await row.getByRole('button', { name: 'Describe' }).click()
  await field('Description of team/').fill('Of another team')
  await row.getByRole('button', { name: 'Save' }).click()
  await sees(row.getByText('Of another team'))

  await button('Enable an engine').click()
  await field('Path').fill('team')
  await button('Enable').click()
  await sees(page.getByRole('alert').getByText(/team/))
  await button('Cancel').click()
})

test('creates a secret and reveals it', async () => {
  await visit('Secrets')
  await page.getByRole('link', { name: 'team/' }).click()
  await page.getByRole('link', { name: 'New secret' }).click()
  await field('Path').fill('app/data base?#1')
  await field('Key 1').fill('user')
  await field('Value of user').fill('alice')
  await button('Add a key').click()
  await field('Key 2').fill('password')
  await field('Value of password').fill('correct "horse"\nbattery')
  await button('Save').click()

  await sees(heading('data base?#1'))
  assert.equal((await page.locator('main').innerText()).includes('horse'), false, 'values are hidden')
  await button('Reveal password').click()
  assert.equal(await page.locator('[data-value="password"]').innerText(), 'correct "horse"\nbattery')
  await button('Hide password').click()
  await button('Copy password').click()
  await sees(notice('password copied'))
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'correct "horse"\nbattery')
  assert.deepEqual((await api('GET', 'team/data/app/data%20base%3F%231')).body.data.data, { user: 'alice', password: 'correct "horse"\nbattery' })
})

test('refuses to create over a secret that is there', async () => {
  await page.goto(`${server.url}/ui/#/secrets/team%2F/new/app/`)
  await field('Path').fill('app/data base?#1')
  await field('Key 1').fill('user')
  await field('Value of user').fill('mallory')
  await button('Save').click()
  await sees(page.getByRole('alert').getByText('There is a secret at app/data base?#1 already.'))
})

test('browses folders by breadcrumbs and filters names', async () => {
  for (const name of ['cache', 'queue']) await api('PUT', `team/data/app/${name}`, { data: { a: 'b' } })
  await page.goto(`${server.url}/ui/#/secrets/team%2F/list`)
  await page.getByRole('link', { name: 'app/' }).click()
  await sees(heading('app'))
  await field('Filter by name').fill('CACHE')
  await sees(page.getByText('1 of 3 entries'))
  assert.equal(await page.locator('.rows a').count(), 1)
  await page.getByRole('navigation', { name: 'Breadcrumb' }).getByRole('link', { name: 'team' }).click()
  await page.getByRole('link', { name: 'app/' }).click()
  await page.getByRole('link', { name: 'data base?#1' }).click()
  await sees(heading('data base?#1'))
})

test('writes a new version as JSON and compares the two', async () => {
  await page.getByRole('link', { name: 'New version' }).click()
  await sees(page.getByText('Saved only if version 1 is still the latest.'))
  await button('JSON').click()
  await field('Content as JSON').fill('{"user":"alice","port":5432,"id":12345678901234567890')
  await sees(page.getByText('This is not valid JSON yet.'))
  assert.equal(await button('Save').isDisabled(), true)
  await field('Content as JSON').fill('{"user":"alice","port":5432,"id":12345678901234567890}')
  await button('Save').click()
  await sees(heading('Version 2'))
  await button('Reveal id').click()
  assert.equal(await page.locator('[data-value="id"]').innerText(), '12345678901234567890', 'numbers keep all their digits')

  await page.locator('[data-version="1"]').getByRole('button', { name: 'Compare' }).click()
  await sees(page.locator('#compare .added'))
  const changes = await page.locator('#compare li').evaluateAll((all) => all.map((li) => `${li.querySelector('code').innerText} ${li.className.split(' ')[0]}`))
  assert.deepEqual(changes, ['id added', 'password removed', 'port added', 'user same'])
})

test('a version written elsewhere in the meantime is not overwritten', async () => {
  await page.getByRole('link', { name: 'New version' }).click()
  await sees(page.getByText('Saved only if version 2 is still the latest.'))
  await api('PUT', 'team/data/app/data%20base%3F%231', { data: { user: 'bob' } })
  await field('Content as JSON').fill('{"user":"carol"}')
  await button('Save').click()
  await sees(page.getByRole('alert').getByText('check-and-set parameter did not match the current version'))
  assert.deepEqual((await api('GET', 'team/data/app/data%20base%3F%231')).body.data.data, { user: 'bob' })
  await page.getByRole('link', { name: 'Cancel' }).click()
  await sees(heading('Version 3'))
})

test('deletes, restores and destroys a version', async () => {
  const version = (n) => page.locator(`[data-version="${n}"]`)
  await version(3).getByRole('button', { name: 'Delete' }).click()
  await sees(page.locator('#gone').getByText('Version 3 was deleted'))
  await sees(version(3).getByText('deleted', { exact: true }))
  await button('Restore it').click()
  await sees(button('Reveal user'))
  await version(1).getByRole('button', { name: 'Destroy' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
  await version(1).getByRole('button', { name: 'Destroy' }).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Destroy' }).click()
  await sees(version(1).getByText('destroyed', { exact: true }))
  await version(1).getByRole('link').click()
  await sees(page.locator('#gone').getByText('Version 1 was destroyed'))
  assert.equal((await api('GET', 'team/metadata/app/data%20base%3F%231')).body.data.versions[1].destroyed, true)
})

test('edits custom metadata', async () => {
  await button('Edit metadata').click()
  await field('Name 1').fill('owner')
  await field('Text 1').fill('payments')
  await field('Versions to keep').fill('5')
  await button('Save metadata').click()
  await sees(notice('Metadata saved'))
  await sees(page.getByText('payments'))
  const { data } = (await api('GET', 'team/metadata/app/data%20base%3F%231')).body
  assert.deepEqual([data.custom_metadata, data.max_versions], [{ owner: 'payments' }, 5])
})

test('deletes a secret only after its name was typed', async () => {
  await page.goto(`${server.url}/ui/#/secrets/team%2F/show/app/queue`)
  await button('Delete').first().click()
  const dialog = page.getByRole('dialog')
  const confirm = dialog.getByRole('button', { name: 'Delete for good' })
  assert.equal(await confirm.isDisabled(), true)
  await dialog.getByRole('textbox').fill('queue')
  await confirm.click()
  await sees(heading('app'))
  assert.equal(await page.getByRole('link', { name: 'queue' }).count(), 0)
})

test('writes, edits and deletes a policy', async () => {
  await visit('Policies')
  await page.getByRole('link', { name: 'New policy' }).click()
  await field('Name').fill('reader')
  await field('Policy').fill('path "team/data/*" { capabilities = ["reed"] }')
  await button('Save policy').click()
  await sees(page.getByRole('alert').getByText(/reed/))
  await field('Policy').fill('path "team/data/*" { capabilities = ["read"] }')
  await button('Save policy').click()
  await page.getByRole('link', { name: 'reader' }).click()
  await sees(heading('reader'))
  assert.match(await field('Policy').inputValue(), /"read"/)

  await api('PUT', 'sys/policies/acl/passing', { policy: 'path "x" { capabilities = ["read"] }' })
  await page.goto(`${server.url}/ui/#/policies/edit/passing`)
  await button('Delete').click()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete policy' }).click()
  await sees(notice('Policy passing deleted'))
  assert.equal((await api('GET', 'sys/policies/acl/passing')).status, 404)
})

let readerToken

test('creates a token, looks it up by its accessor, and it is refused what its policy does not cover', async () => {
  await visit('Tokens')
  await page.getByLabel('reader', { exact: true }).check()
  await field('Lifetime').fill('90m')
  await page.locator('[name=display_name]').fill('night shift')
  await button('Create token').click()
  const made = page.locator('#made')
  await made.getByRole('button', { name: 'Reveal Token' }).click()
  readerToken = await made.locator('code').first().innerText()
  const accessor = await made.locator('code').nth(1).innerText()
  await sees(made.getByText('Expires in 1 h 30 min.'))

  await field('Accessor').fill(accessor)
  await button('Look up').click()
  await sees(page.locator('#found').getByText(/night.shift/))

  const other = await openPage(browser, server)
  const there = other.page
  await there.goto(`${server.url}/ui/`)
  await there.getByLabel('Token').fill(readerToken)
  await there.getByRole('button', { name: 'Sign in' }).click()
  await there.getByRole('link', { name: 'team/' }).click()
  await sees(there.getByRole('alert').getByText('permission denied'))
  await there.getByLabel('Open a secret by its path').fill('app/cache')
  await there.getByRole('button', { name: 'Open', exact: true }).click()
  await sees(there.getByRole('button', { name: 'Reveal a', exact: true }))
  await sees(there.getByText('may not see the versions'))

  await button('Revoke').click()
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke token' }).click()
  await sees(notice('Token revoked'))
  await there.getByRole('link', { name: 'Policies' }).click()
  await sees(there.getByText('Your token is no longer valid.'))
  assert.deepEqual(await there.evaluate(() => Object.values(sessionStorage)), [])
  assert.deepEqual(other.faults, [])
  await other.context.close()
})

test('enables and disables an audit device', async () => {
  await visit('Audit')
  await sees(page.getByText('No device is enabled'))
  await button('Enable a device').click()
  await field('Path').fill('trail')
  await page.locator('[name=file]').fill(join(server.dir, 'missing', 'audit.log'))
  await button('Enable').click()
  await sees(page.getByRole('alert'))
  await page.locator('[name=file]').fill(join(server.dir, 'audit.log'))
  await button('Enable').click()
  await sees(page.locator('[data-device="trail/"]'))
  await page.locator('[data-device="trail/"]').getByRole('button', { name: 'Disable' }).click()
  await page.getByRole('dialog').getByRole('textbox').fill('trail/')
  await page.getByRole('dialog').getByRole('button', { name: 'Disable' }).click()
  await sees(page.getByText('No device is enabled'))
  assert.ok((await readFile(join(server.dir, 'audit.log'), 'utf8')).includes('sys/audit'))
})

test('shows the cluster', async () => {
  await visit('Cluster')
  await sees(heading('vault-street'))
  await sees(page.getByText('shamir, 2 of 3 keys'))
  await sees(page.getByRole('listitem').filter({ hasText: 'n1' }).getByText('active', { exact: true }))
  await sees(page.getByRole('img', { name: /^Requests per second: \d/ }))
})

test('disables an engine only after its path was typed', async () => {
  await api('POST', 'sys/mounts/old', { type: 'kv' })
  await visit('Engines')
  await page.locator('[data-mount="old/"]').getByRole('button', { name: 'Disable' }).click()
  await page.getByRole('dialog').getByRole('textbox').fill('old')
  assert.equal(await page.getByRole('dialog').getByRole('button', { name: 'Disable and delete' }).isDisabled(), true)
  await page.getByRole('dialog').getByRole('textbox').fill('old/')
  await page.getByRole('dialog').getByRole('button', { name: 'Disable and delete' }).click()
  await sees(notice('old/ disabled'))
  assert.equal((await api('GET', 'sys/mounts/old')).status, 400)
})

test('a kv version 1 engine works without versions', async () => {
  await api('POST', 'sys/mounts/plain', { type: 'kv', options: { version: '1' } })
  await page.goto(`${server.url}/ui/#/secrets/plain%2F/new`)
  await field('Path').fill('one')
  await field('Key 1').fill('k')
  await field('Value of k').fill('v')
  await button('Save').click()
  await sees(heading('Content'))
  await page.getByRole('link', { name: 'Edit' }).click()
  await field('Value of k').fill('w')
  await button('Save').click()
  await button('Reveal k').click()
  await sees(page.locator('[data-value="k"]', { hasText: 'w' }))
  assert.deepEqual((await api('GET', 'plain/one')).body.data, { k: 'w' })
})

test('fits a screen 360 pixels wide, light and dark', async () => {
  const secret = `secrets/team%2F/show/${encodeURIComponent('app')}/${encodeURIComponent('data base?#1')}`
  for (const colorScheme of ['light', 'dark']) {
    const small = await openPage(browser, server, { viewport: { width: 360, height: 740 }, colorScheme })
    await small.page.goto(`${server.url}/ui/`)
    await small.page.getByLabel('Token').fill(rootToken)
    await small.page.getByRole('button', { name: 'Sign in' }).click()
    await sees(small.page.getByRole('heading', { name: 'Secrets' }))
    for (const place of ['secrets', 'secrets/team%2F/list', secret, secret.replace('show', 'edit'), 'policies', 'policies/new', 'tokens', 'engines/new', 'audit', 'overview']) {
      await small.page.goto(`${server.url}/ui/#/${place}`)
      await sees(small.page.locator('main h1'))
      await small.page.waitForLoadState('networkidle')
      const wide = await small.page.evaluate(() => document.documentElement.scrollWidth)
      assert.ok(wide <= 360, `${place} is ${wide} pixels wide`)
    }
    assert.deepEqual(small.faults, [])
    await small.context.close()
  }
})

test('can be used with the keyboard alone', async () => {
  await page.goto(`${server.url}/ui/#/secrets`)
  await sees(heading('Secrets'))
  await page.reload()
  await sees(page.getByRole('link', { name: 'team/' }))
  await page.keyboard.press('Tab')
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the content')
  await page.keyboard.press('Enter')
  const reached = []
  while (!reached.includes('team/')) {
    assert.ok(reached.length < 12, `team/ is not reached: ${reached}`)
    await page.keyboard.press('Tab')
    reached.push(await page.evaluate(() => document.activeElement.textContent))
  }
  const outline = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle)
  assert.notEqual(outline, 'none', 'the focus can be seen')
  await page.keyboard.press('Enter')
  await sees(heading('team'))
  await page.waitForFunction(() => document.activeElement.tagName === 'H1')
})

test('every control has a name', async () => {
  for (const place of ['secrets', 'secrets/team%2F/list', 'secrets/team%2F/show/app/cache', 'secrets/team%2F/edit/app/cache', 'policies/new', 'tokens', 'engines/new', 'audit', 'overview']) {
    await page.goto(`${server.url}/ui/#/${place}`)
    await sees(page.locator('main h1'))
    await page.waitForLoadState('networkidle')
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll('button, a, input, textarea, select')]
        .filter((e) => !(e.getAttribute('aria-label') || e.labels?.[0]?.textContent.trim() || e.textContent.trim()))
        .map((e) => e.outerHTML),
    )
    assert.deepEqual(nameless, [])
  }
})

test('seals the node, asks for the keys, and goes on where it was', async () => {
  await visit('Cluster')
  await button('Seal this node').click()
  await page.getByRole('dialog').getByRole('textbox').fill('seal')
  await page.getByRole('dialog').getByRole('button', { name: 'Seal node' }).click()
  await sees(heading('Unseal this node'))
  assert.equal((await fetch(`${server.url}/v1/sys/health`)).status, 503)
  await unseal()
  await sees(heading('vault-street'))
  await sees(page.getByRole('status', { name: 'Status: Unsealed, active' }))
})

test('signs out and forgets the token', async () => {
  await page.getByLabel('Your session').click()
  await button('Sign out').click()
  await sees(heading('Sign in'))
  assert.deepEqual(await page.evaluate(() => Object.values(sessionStorage)), [])
  await page.goBack()
  await sees(heading('Sign in'))
})

test('revokes its own token when asked to', async () => {
  const { body } = await api('POST', 'auth/token/create', { policies: ['reader'], ttl: '1h' })
  const token = body.auth.client_token
  await signIn(token)
  await page.getByLabel('Your session').click()
  await button('Revoke this token').click()
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke token' }).click()
  await sees(heading('Sign in'))
  assert.equal((await api('GET', 'auth/token/lookup-self', undefined, token)).status, 403)
})

test('never broke the content security policy, threw, or asked another server', () => {
  assert.deepEqual(faults, [])
})

test('a violation of the policy would have been noticed', async () => {
  const { page, faults, context } = await openPage(browser, server)
  await page.goto(`${server.url}/ui/`)
  await sees(page.getByRole('heading', { name: 'Sign in' }))
  const blocked = await page.evaluate(() => {
    const inline = document.createElement('style')
    inline.textContent = 'body { display: none }'
    document.head.append(inline)
    try {
      document.body.innerHTML = '<b>made of text</b>'
      return false
    } catch {
      return true
    }
  })
  assert.equal(blocked, true, 'text does not become markup')
  await sees(page.getByRole('heading', { name: 'Sign in' }))
  assert.ok(faults.some((f) => f.includes('style-src')), `style-src in ${faults}`)
  assert.ok(faults.some((f) => f.includes('require-trusted-types-for')), `trusted types in ${faults}`)
  await context.close()
})
