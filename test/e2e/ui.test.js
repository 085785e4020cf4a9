// The whole UI against a real server, as a person would use it: from an empty server to a sealed one.
// The tests are one story and run in order.

import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test as run } from 'node:test'
import { openPage, settled, startBrowser, startServer } from './server.js'

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
const row = (id, there = page) => there.locator(`[data-row="${id}"]`)
/** Opens the menu of a row, or of the page, and chooses from it. */
async function choose(menu, action) {
  await button(menu).click()
  await button(action).click()
}
const place = (there) => there.getByRole('button', { name: /^Namespace: / })
/** The namespaces to choose from. */
async function namespaces(there) {
  await place(there).click()
  const names = await there.locator('.where a').evaluateAll((all) => all.map((a) => a.getAttribute('aria-label')))
  await there.keyboard.press('Escape')
  return names
}
async function enterNamespace(there, name) {
  await place(there).click()
  await there.locator('.where').getByRole('link', { name, exact: true }).click()
}
const visit = (page_) => page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: page_, exact: true }).click()

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

async function api(method, path, body, token = rootToken, namespace = '') {
  const response = await fetch(`${server.url}/v1/${path}`, {
    method,
    headers: { 'X-Vault-Token': token, ...(namespace && { 'X-Vault-Namespace': namespace }) },
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
  await sees(row('team/').getByText('kv version 2'))
  await choose('Change team/', 'Describe')
  await field('Description of team/').fill('Of another team')
  await button('Save').click()
  await sees(row('team/').getByText('Of another team'))

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
  for (const name of ['a', 'b', 'c', 'd', 'e', 'cache', 'queue']) await api('PUT', `team/data/app/${name}`, { data: { a: 'b' } })
  await page.goto(`${server.url}/ui/#/secrets/team%2F/list`)
  await page.getByRole('link', { name: 'app/' }).click()
  await sees(heading('app'))
  await field('Filter by name').fill('CACHE')
  await sees(page.getByText('1 of 8 entries'))
  assert.equal(await page.locator('tbody a').count(), 1)
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

  await page.getByRole('link', { name: 'Versions' }).click()
  await row(2).getByRole('button', { name: 'Compare' }).click()
  await sees(page.locator('#compare .added'))
  const changes = await page.locator('#compare li').evaluateAll((all) => all.map((li) => `${li.querySelector('code').innerText} ${li.className.split(' ')[0]}`))
  assert.deepEqual(changes, ['id added', 'password removed', 'port added', 'user same'])
  assert.equal((await page.locator('#compare').innerText()).includes('horse'), false, 'values are hidden')
  await button('Show values').click()
  await sees(page.locator('#compare .before', { hasText: 'horse' }))
  await sees(page.locator('#compare .after', { hasText: '5432' }))
  await button('Hide values').click()
  await page.locator('#compare .after').first().waitFor({ state: 'detached' })
})

test('a version written elsewhere in the meantime is not overwritten', async () => {
  await page.getByRole('link', { name: 'New version' }).click()
  await sees(page.getByText('Saved only if version 2 is still the latest.'))
  await api('PUT', 'team/data/app/data%20base%3F%231', { data: { user: 'bob' } })
  await field('Content as JSON').fill('{"user":"carol"}')
  await button('Save').click()
  await sees(page.getByRole('alert').getByText('check-and-set parameter did not match the current version'))
  assert.deepEqual((await api('GET', 'team/data/app/data%20base%3F%231')).body.data.data, { user: 'bob' })
  await button('Cancel').click()
  await sees(heading('Version 3'))
})

test('deletes, restores and destroys a version', async () => {
  await page.getByRole('link', { name: 'Versions' }).click()
  await choose('More about version 3', 'Delete')
  await sees(row(3).getByText('deleted', { exact: true }))
  await page.getByRole('link', { name: 'Value', exact: true }).click()
  await sees(page.locator('#gone').getByText('Version 3 was deleted'))
  await button('Restore it').click()
  await sees(button('Reveal user'))
  await page.getByRole('link', { name: 'Versions' }).click()
  await choose('More about version 1', 'Destroy')
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click()
  await choose('More about version 1', 'Destroy')
  await page.getByRole('dialog').getByRole('button', { name: 'Destroy' }).click()
  await sees(row(1).getByText('destroyed', { exact: true }))
  await row(1).getByRole('link', { name: 'Version 1', exact: true }).click()
  await sees(page.locator('#gone').getByText('Version 1 was destroyed'))
  assert.equal((await api('GET', 'team/metadata/app/data%20base%3F%231')).body.data.versions[1].destroyed, true)
})

test('rolls back to an earlier version', async () => {
  await page.getByRole('link', { name: 'Versions' }).click()
  await choose('More about version 2', 'Roll back to it')
  await page.getByRole('dialog').getByRole('button', { name: 'Roll back' }).click()
  await sees(notice('Version 4 written, with the content of version 2'))
  await sees(row(4).getByText('latest'))
  const raw = await fetch(`${server.url}/v1/team/data/app/data%20base%3F%231`, { headers: { 'X-Vault-Token': rootToken } })
  assert.match(await raw.text(), /"id":12345678901234567890/, 'numbers keep all their digits')
})

test('edits custom metadata', async () => {
  await page.getByRole('link', { name: 'Metadata' }).click()
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
  await choose('More', 'Delete all versions')
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
  const retype = async (text) => {
    await field('Policy').click()
    await page.keyboard.press('ControlOrMeta+A')
    await page.keyboard.insertText(text)
  }
  await retype('path "team/data/*" { capabilities = ["reed"] }')
  await button('Save policy').click()
  await sees(page.getByRole('alert').getByText(/reed/))
  await retype('path "team/data/*" { capabilities = ["read"] }')
  await button('Save policy').click()
  await page.getByRole('link', { name: 'reader' }).click()
  await sees(heading('reader'))
  assert.match(await field('Policy').innerText(), /"read"/)

  await api('PUT', 'sys/policies/acl/passing', { policy: 'path "x" { capabilities = ["read"] }' })
  await page.goto(`${server.url}/ui/#/policies/edit/passing`)
  await button('Delete').click()
  await page.getByRole('dialog').getByRole('button', { name: 'Delete policy' }).click()
  await sees(notice('Policy passing deleted'))
  assert.equal((await api('GET', 'sys/policies/acl/passing')).status, 404)
})

test('types over what the browser has selected before the editor has heard of it', async () => {
  const other = await openPage(browser, server)
  await other.page.addInitScript(() => window.addEventListener('selectionchange', (e) => e.stopImmediatePropagation(), true))
  await other.page.goto(`${server.url}/ui/#/policies/new`)
  await other.page.getByLabel('Token', { exact: true }).fill(rootToken)
  await other.page.getByRole('button', { name: 'Sign in', exact: true }).click()
  const policy = other.page.getByLabel('Policy', { exact: true })
  await policy.fill('path "one/*" { capabilities = ["read"] }')
  await policy.fill('path "two/*" { capabilities = ["list"] }')
  assert.equal((await policy.innerText()).trim(), 'path "two/*" { capabilities = ["list"] }')
  assert.deepEqual(other.faults, [])
  await other.context.close()
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
  assert.equal(await there.getByRole('link', { name: 'Versions' }).count(), 0, 'its metadata is not covered')
  assert.equal(await there.getByRole('link', { name: 'New version' }).count(), 0)

  await button('Revoke').click()
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke token' }).click()
  await sees(notice('Token revoked'))
  await there.goto(`${server.url}/ui/#/policies`)
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
  await page.locator('[name=file]').fill(join(server.dir, 'data-audit', 'audit.log'))
  await button('Enable').click()
  await row('trail/').getByRole('button', { name: 'Disable' }).click()
  await page.getByRole('dialog').getByRole('textbox').fill('trail/')
  await page.getByRole('dialog').getByRole('button', { name: 'Disable' }).click()
  await sees(page.getByText('No device is enabled'))
  assert.ok((await readFile(join(server.dir, 'data-audit', 'audit.log'), 'utf8')).includes('sys/audit'))
})

test('shows the cluster', async () => {
  await visit('Cluster')
  await sees(heading('vault-street'))
  await sees(page.getByText('shamir, 2 of 3 keys'))
  await sees(row('n1').getByText('active', { exact: true }))
  await sees(page.getByRole('img', { name: /^Requests per second: \d/ }))
  await sees(page.locator('#self').getByText(/GiB free|MiB free|TiB free/))
})

test('disables an engine only after its path was typed', async () => {
  await api('POST', 'sys/mounts/old', { type: 'kv' })
  await visit('Engines')
  await choose('Change old/', 'Disable')
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

/** Runs work in a browser of somebody else, who has not signed in, and looks at what it asked for and kept. */
async function elsewhere(place, secrets, work) {
  const other = await openPage(browser, server)
  const asked = []
  other.page.on('request', (r) => asked.push(r.url()))
  other.page.on('framenavigated', (f) => asked.push(f.url()))
  await other.page.goto(`${server.url}/ui/${place}`)
  await work(other.page, asked)
  for (const secret of secrets) assert.equal(asked.some((url) => url.includes(secret)), false, 'a secret is in an address')
  const kept = await other.page.evaluate(() => [JSON.stringify(localStorage), document.cookie, Object.keys(sessionStorage).join()])
  assert.deepEqual(kept, ['{}', '', 'coffer.token'])
  assert.deepEqual(other.faults, [])
  await other.context.close()
}

async function enter(there, name, password, namespace = '') {
  await there.getByRole('button', { name: 'Username' }).click()
  await there.getByLabel('Username', { exact: true }).fill(name)
  await there.getByLabel('Password', { exact: true }).fill(password)
  if (namespace) await there.getByLabel('Namespace', { exact: true }).fill(namespace)
  await there.getByRole('button', { name: 'Sign in', exact: true }).click()
}

test('enables an auth method for the sign-in page, changes and disables it', async () => {
  await visit('Engines')
  await page.getByRole('link', { name: 'Auth methods' }).click()
  await sees(heading('Auth methods'))
  await button('Enable a method').click()
  await page.getByRole('radio', { name: /^saml/ }).check()
  await field('Path').fill('staff')
  await page.getByLabel('Show it to everybody who opens the sign-in page').check()
  await button('Enable').click()
  await sees(notice('Auth method enabled at staff/'))
  await sees(row('staff/').getByText('on the sign-in page'))
  await sees(row('staff/').getByText(`${server.url}/v1/auth/staff/callback`))
  await elsewhere('', [rootToken], async (there) => {
    await sees(there.getByLabel('Sign in through'))
    assert.equal(await there.getByRole('button', { name: 'SAML', exact: true }).getAttribute('aria-pressed'), 'true')
    await there.getByRole('button', { name: 'Token', exact: true }).click()
    await there.getByLabel('Token').fill(rootToken)
    await there.getByRole('button', { name: 'Sign in', exact: true }).click()
    await sees(there.getByRole('heading', { name: 'Secrets' }))
  })

  await choose('Change staff/', 'Change')
  await page.getByLabel('Description of staff/').fill('Who works here')
  await page.getByLabel('Show it to everybody who opens the sign-in page').uncheck()
  await button('Save').click()
  await sees(row('staff/').getByText('Who works here'))
  await row('staff/').getByText('on the sign-in page').waitFor({ state: 'detached' })

  await choose('Change staff/', 'Disable')
  await page.getByRole('dialog').getByRole('textbox').fill('staff/')
  await page.getByRole('dialog').getByRole('button', { name: 'Disable and delete' }).click()
  await sees(notice('staff/ disabled'))
  assert.equal((await api('GET', 'sys/auth/staff')).status, 400)
})

test('signs in with a username, and words a refusal as the server does', async () => {
  await api('POST', 'sys/auth/people', { type: 'userpass' })
  await api('POST', 'auth/people/users/ann', { password: 'pw-of-ann', token_policies: ['reader'] })
  const refusal = (await api('POST', 'auth/people/login/ann', { password: 'wrong' }, '')).body.errors[0]
  await elsewhere('', ['pw-of-ann'], async (there, asked) => {
    await there.getByRole('button', { name: 'Username' }).click()
    assert.equal(await there.getByLabel('Mount path').inputValue(), 'userpass')
    await there.getByLabel('Mount path').fill('people')
    await enter(there, 'ann', 'wrong')
    await sees(there.getByRole('alert').getByText(refusal, { exact: true }))
    await enter(there, 'ann', 'pw-of-ann')
    await sees(there.getByRole('heading', { name: 'Secrets' }))
    await sees(there.getByText('people-ann'))
    await settled(there)
    const lookups = asked.filter((url) => url.endsWith('/lookup-self')).length
    assert.ok(lookups <= 2, `the token was looked up ${lookups} times`)
    assert.equal(await there.getByLabel('Namespace').count(), 0, 'there is none to choose from')
  })
})

/** The code that an authenticator app shows, from what it was given. */
function passcode(address) {
  const params = new URL(address).searchParams
  const bits = [...params.get('secret')].map((c) => 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'.indexOf(c).toString(2).padStart(5, '0')).join('')
  const key = Buffer.from(bits.match(/.{8}/g).map((b) => parseInt(b, 2)))
  const counter = Buffer.alloc(8)
  counter.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 1000 / Number(params.get('period')))))
  const sum = createHmac(params.get('algorithm'), key).update(counter).digest()
  const digits = Number(params.get('digits'))
  return String((sum.readUInt32BE(sum.at(-1) & 15) & 0x7fffffff) % 10 ** digits).padStart(digits, '0')
}

test('asks for the passcode of a second factor', async () => {
  await api('POST', 'sys/auth/userpass', { type: 'userpass' })
  await api('POST', 'auth/userpass/users/bob', { password: 'pw-of-bob', token_policies: ['reader'] })
  const { entity_id } = (await api('POST', 'auth/userpass/login/bob', { password: 'pw-of-bob' }, '')).body.auth
  const accessor = (await api('GET', 'sys/auth')).body.data['userpass/'].accessor
  const { method_id } = (await api('POST', 'identity/mfa/method/totp', { issuer: 'coffer', period: 120, algorithm: 'SHA256' })).body.data
  const { url } = (await api('POST', 'identity/mfa/method/totp/admin-generate', { method_id, entity_id })).body.data
  await api('POST', 'identity/mfa/login-enforcement/all', { mfa_method_ids: [method_id], auth_method_accessors: [accessor] })

  await elsewhere('', ['pw-of-bob'], async (there) => {
    const give = async (code) => {
      await there.getByLabel('Passcode').fill(code)
      await there.getByRole('button', { name: 'Continue' }).click()
    }
    await enter(there, 'bob', 'pw-of-bob')
    await sees(there.getByRole('heading', { name: 'Enter your passcode' }))
    await there.waitForFunction(() => document.activeElement.inputMode === 'numeric')
    assert.deepEqual(await there.evaluate(() => Object.values(sessionStorage)), [], 'there is no token yet')
    const refused = there.waitForResponse((r) => r.url().endsWith('/sys/mfa/validate'))
    await give(passcode(url).replace(/.$/, (d) => (Number(d) + 1) % 10))
    const said = (await (await refused).json()).errors[0]
    await sees(there.getByRole('alert').getByText(said, { exact: true }))
    await give(passcode(url))
    await sees(there.getByRole('heading', { name: 'Secrets' }))
    await sees(there.getByText('userpass-bob'))
  })
})

test('signs in within a namespace and stays in those that the token may see', async () => {
  await api('POST', 'sys/namespaces/division', {})
  await api('POST', 'sys/namespaces/division/lab', {})
  const within = (method, path, body) => api(method, path, body, rootToken, 'division')
  await within('POST', 'sys/auth/userpass', { type: 'userpass' })
  await within('PUT', 'sys/policies/acl/member', { policy: 'path "shelf/*" { capabilities = ["read", "list"] } path "lab/drawer/*" { capabilities = ["read", "list"] }' })
  await within('POST', 'auth/userpass/users/cleo', { password: 'pw-of-cleo', token_policies: ['member'] })
  await within('POST', 'sys/mounts/shelf', { type: 'kv', options: { version: '1' } })
  await within('PUT', 'shelf/book', { title: 'one' })
  await api('POST', 'sys/mounts/drawer', { type: 'kv', options: { version: '1' } }, rootToken, 'division/lab')

  await elsewhere('', ['pw-of-cleo'], async (there) => {
    const missing = (await api('POST', 'auth/userpass/login/cleo', { password: 'x' }, '', 'nowhere')).body.errors[0]
    await enter(there, 'cleo', 'pw-of-cleo', 'nowhere')
    await sees(there.getByRole('alert').getByText(missing, { exact: true }))
    await enter(there, 'cleo', 'pw-of-cleo', '/division/')
    await sees(place(there))
    await sees(there.getByText('userpass-cleo'))
    assert.deepEqual(await namespaces(there), ['division', 'division/lab'])
    await there.getByRole('link', { name: 'shelf/' }).click()
    await there.getByRole('link', { name: 'book' }).click()
    await there.getByRole('button', { name: 'Reveal title' }).click()
    await sees(there.locator('[data-value="title"]', { hasText: 'one' }))
    await there.reload()
    await sees(there.getByRole('heading', { name: 'book' }))

    await enterNamespace(there, 'division/lab')
    await sees(there.getByRole('link', { name: 'drawer/' }))
    assert.equal(await there.getByRole('link', { name: 'shelf/' }).count(), 0)
    assert.equal(await there.getByRole('link', { name: 'Policies' }).count(), 0, 'what it may not see is not offered')
    await there.goto(`${server.url}/ui/#/policies?ns=division%2Flab`)
    await sees(there.getByRole('alert').getByText('permission denied'))
    await sees(there.getByText('userpass-cleo'))

    await there.goto(`${server.url}/ui/`) // the token is of no use in the root namespace
    await there.reload()
    await sees(there.getByRole('link', { name: 'shelf/' }))
    await sees(there.getByRole('button', { name: 'Namespace: division', exact: true }))
  })
})

test('a token of a namespace finds its way there', async () => {
  const { body } = await api('POST', 'auth/token/create', { policies: ['member'], ttl: '1h' }, rootToken, 'division')
  const token = body.auth.client_token
  await elsewhere('', [token], async (there) => {
    await there.getByLabel('Token').fill(token)
    await there.getByRole('button', { name: 'Sign in', exact: true }).click()
    await sees(there.getByRole('link', { name: 'shelf/' }))
    await there.getByLabel('Your session').click()
    await there.getByRole('button', { name: 'Revoke this token' }).click()
    await there.getByRole('dialog').getByRole('button', { name: 'Revoke token' }).click()
    await sees(there.getByRole('heading', { name: 'Sign in' }))
    assert.equal((await api('GET', 'auth/token/lookup-self', undefined, token, 'division')).status, 403)
    // The namespace is there again for the next one, who has rights in all of them.
    assert.equal(await there.getByLabel('Namespace').inputValue(), 'division')
    await there.getByLabel('Token').fill(rootToken)
    await there.getByRole('button', { name: 'Sign in', exact: true }).click()
    await sees(there.getByRole('link', { name: 'shelf/' }))
  })
})

test('switches namespaces: engines, secrets and policies are those of the one chosen', async () => {
  await page.goto(`${server.url}/ui/#/secrets`)
  await page.reload()
  await sees(place(page))
  assert.deepEqual(await namespaces(page), ['root namespace', 'division', 'division/lab'])
  await place(page).focus()
  await page.keyboard.press('Enter')
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('Enter')
  await sees(page.getByRole('link', { name: 'shelf/' }))
  assert.equal(await page.getByRole('link', { name: 'team/' }).count(), 0)
  await enterNamespace(page, 'division/lab')
  await sees(page.getByRole('link', { name: 'drawer/' }))
  await enterNamespace(page, 'division')

  await page.getByRole('link', { name: 'shelf/' }).click()
  await page.getByRole('link', { name: 'New secret' }).click()
  await field('Path').fill('map')
  await field('Key 1').fill('of')
  await field('Value of of').fill('here')
  await button('Save').click()
  await sees(button('Reveal of'))
  assert.deepEqual((await api('GET', 'shelf/map', undefined, rootToken, 'division')).body.data, { of: 'here' })

  await visit('Policies')
  await page.getByRole('link', { name: 'New policy' }).click()
  await field('Name').fill('local')
  await field('Policy').fill('path "shelf/*" { capabilities = ["read"] }')
  await button('Save policy').click()
  await sees(page.getByRole('link', { name: 'local' }))
  assert.equal((await api('GET', 'sys/policies/acl/local')).status, 404)
  assert.equal((await api('GET', 'sys/policies/acl/local', undefined, rootToken, 'division')).status, 200)

  await visit('Engines')
  await sees(row('shelf/'))
  await visit('Cluster') // there is one, whatever the namespace
  await sees(page.getByText('shamir, 2 of 3 keys'))
  await sees(row('n1'))
  await visit('Audit')
  await sees(page.getByText('No device is enabled'))

  await visit('Engines')
  await choose('Change shelf/', 'Disable')
  await sees(page.getByRole('dialog'))
  await page.goBack() // the question is not asked of another place
  await sees(heading('Audit devices'))
  assert.equal(await page.getByRole('dialog').count(), 0)
  await enterNamespace(page, 'root namespace')
  await visit('Policies')
  await sees(page.getByRole('link', { name: 'reader' }))
  assert.equal(await page.getByRole('link', { name: 'local' }).count(), 0)
})

test('wraps a text and JSON, and opens each once', async () => {
  const made = page.locator('#wrapped')
  const wrapped = async () => {
    await button('Wrap').click()
    await made.getByRole('button', { name: 'Reveal Wrapping token' }).click()
    const token = await made.locator('code').innerText()
    await made.getByRole('button', { name: 'Done' }).click()
    return token
  }
  const unwrap = async (token) => {
    await field('Token to unwrap').fill(token)
    await button('Unwrap').click()
  }
  await visit('Wrap')
  await field('Lifetime').fill('soon')
  await field('Value of text').fill('open sesame')
  await button('Wrap').click()
  await sees(page.getByRole('alert').getByText(/X-Vault-Wrap-TTL must be a duration/))
  await field('Lifetime').fill('90m')
  await button('Wrap').click()
  await sees(made.getByText('within 1 h 30 min'))
  await made.getByRole('button', { name: 'Reveal Wrapping token' }).click()
  const token = await made.locator('code').innerText()
  const { data } = (await api('POST', 'sys/wrapping/lookup', { token })).body
  assert.deepEqual([data.creation_path, data.creation_ttl], ['sys/wrapping/wrap', 5400])
  await made.getByRole('button', { name: 'Done' }).click()
  assert.equal(await field('Value of text').inputValue(), '', 'the text is gone from the page')

  await unwrap(token)
  const opened = page.locator('#opened')
  await sees(opened)
  assert.equal((await opened.innerText()).includes('sesame'), false, 'it is hidden until asked for')
  await opened.getByRole('button', { name: 'Reveal text' }).click()
  assert.equal(await opened.locator('[data-value="text"]').innerText(), 'open sesame')
  assert.equal(await field('Token to unwrap').inputValue(), '')

  await unwrap(token)
  await sees(page.getByRole('alert').getByText('wrapping token is not valid or does not exist'))
  await sees(page.getByText('another person may have'))
  assert.equal(await opened.count(), 0)

  await button('JSON').click()
  await field('Content as JSON').fill('{"id":12345678901234567890,"more":{"a":[1]}}')
  await unwrap(await wrapped())
  await opened.getByRole('button', { name: 'Reveal id' }).click()
  assert.equal(await opened.locator('[data-value="id"]').innerText(), '12345678901234567890')
  assert.equal(page.url(), `${server.url}/ui/#/wrapping`)

  const held = await fetch(`${server.url}/v1/auth/token/create`, {
    method: 'POST',
    headers: { 'X-Vault-Token': rootToken, 'X-Vault-Wrap-TTL': '5m' },
    body: '{"policies":["reader"],"ttl":"1h"}',
  })
  await unwrap((await held.json()).wrap_info.token)
  await opened.getByRole('button', { name: 'Reveal Token' }).click()
  assert.match(await opened.locator('code').first().innerText(), /^hvs\./)
})

test('fits a screen 360 pixels wide, light and dark', async () => {
  const secret = `secrets/team%2F/show/${encodeURIComponent('app')}/${encodeURIComponent('data base?#1')}`
  for (const colorScheme of ['light', 'dark']) {
    const small = await openPage(browser, server, { viewport: { width: 360, height: 740 }, colorScheme })
    await small.page.goto(`${server.url}/ui/`)
    await small.page.getByLabel('Token').fill(rootToken)
    await small.page.getByRole('button', { name: 'Sign in' }).click()
    await sees(small.page.getByRole('heading', { name: 'Secrets' }))
    for (const place of ['secrets', 'secrets/team%2F/list', secret, secret.replace('show', 'edit'), 'policies', 'policies/new', 'tokens', 'wrapping', 'wrapping?ns=division', 'engines/new', 'engines/methods', 'audit', 'overview', 'overview/replication']) {
      await small.page.goto(`${server.url}/ui/#/${place}`)
      await sees(small.page.locator('main h1'))
      await settled(small.page)
      const wide = await small.page.evaluate(() => document.documentElement.scrollWidth)
      assert.ok(wide <= 360, `${place} is ${wide} pixels wide`)
    }
    assert.deepEqual(small.faults, [])
    await small.context.close()
  }
})

test('unlocks users', async () => {
  await api('POST', 'sys/auth/door', { type: 'userpass' })
  await api('POST', 'auth/door/users/ana', { password: 'right' })
  for (let wrong = 0; wrong < 5; wrong++) await api('POST', 'auth/door/login/ana', { password: 'wrong' }, '')
  assert.equal((await api('POST', 'auth/door/login/ana', { password: 'right' }, '')).status, 403)

  await page.goto(`${server.url}/ui/#/engines/methods`)
  await page.reload()
  const locked = page.locator('#locked li', { hasText: 'ana' })
  await sees(locked.getByText('from 127.0.0.1; locked there'))
  await locked.getByRole('button', { name: 'Unlock' }).click()
  await sees(notice('ana unlocked'))
  await page.locator('#locked').waitFor({ state: 'detached' })
  assert.equal((await api('POST', 'auth/door/login/ana', { password: 'right' }, '')).status, 200)
  await api('DELETE', 'sys/auth/door')
})

test('asks the server no more than it shows', async () => {
  const one = await openPage(browser, server)
  await one.page.clock.install()
  await one.page.goto(`${server.url}/ui/`)
  await one.page.getByLabel('Token').fill(rootToken)
  await one.page.getByRole('button', { name: 'Sign in' }).click()
  await sees(one.page.getByRole('heading', { name: 'Secrets' }))
  for (const place of ['overview', 'overview/replication', 'secrets', 'secrets/team%2F/list', 'policies', 'policies/new', 'tokens', 'wrapping', 'engines/new', 'engines/methods', 'audit']) {
    const requests = []
    const count = (r) => r.url().includes('/v1/') && requests.push(r.url())
    one.page.on('request', count)
    await one.page.goto(`${server.url}/ui/#/${place}`)
    await sees(one.page.locator('main h1'))
    for (let second = 0; second < 12; second++) {
      await one.page.clock.runFor(1000)
      await settled(one.page)
    }
    one.page.off('request', count)
    assert.ok(requests.length <= 15, `${place}: ${requests.length} requests in 12 seconds: ${requests.join(' ')}`)
  }
  assert.deepEqual(one.faults, [])
  await one.context.close()
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
  for (const place of ['secrets', 'secrets/team%2F/list', 'secrets/team%2F/show/app/cache', 'secrets/team%2F/edit/app/cache', 'policies/new', 'tokens', 'wrapping', 'engines/new', 'engines/methods', 'audit', 'overview', 'overview/replication']) {
    await page.goto(`${server.url}/ui/#/${place}`)
    await sees(page.locator('main h1'))
    await settled(page)
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
