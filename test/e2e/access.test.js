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

test('an entity gets policies, an alias and a second factor; the picture of its secret is gone when it is hidden', async () => {
  await api('POST', 'sys/auth/userpass', { type: 'userpass' })
  const { method_id } = (await api('POST', 'identity/mfa/method/totp', { method_name: 'phone', issuer: 'coffer' })).data
  assert.ok(method_id)
  await as(rootToken, 'entities', async (page) => {
    await page.getByRole('button', { name: 'New entity' }).click()
    await page.getByLabel('Name', { exact: true }).fill('Ana')
    await page.getByLabel('Policies', { exact: true }).fill('app-reader')
    await page.getByLabel('Metadata, a name=value in each line').fill('team=payments')
    await page.getByRole('button', { name: 'Save entity' }).click()
    await sees(page.getByRole('heading', { name: 'Ana', exact: true }))
    await sees(page.getByText('payments', { exact: true }))

    await page.getByLabel('Name there').fill('ana')
    await page.getByLabel('Auth method', { exact: true }).selectOption({ label: 'userpass/ (userpass)' })
    await page.getByRole('button', { name: 'Add alias' }).click()
    await sees(page.getByRole('table', { name: 'Aliases' }).getByText('auth/userpass/'))

    await page.getByLabel('Method', { exact: true }).selectOption({ label: 'phone' })
    await page.getByRole('button', { name: 'Enrol' }).click()
    await sees(page.locator('canvas[data-drawn]'))
    await page.getByRole('button', { name: 'Reveal Address for authenticators without a camera' }).click()
    const secret = /secret=(\w+)/.exec(await page.locator('.once code').innerText())[1]
    assert.equal(await kept(page, secret), false)
    assert.deepEqual(await serious(page), [])
    await page.getByRole('button', { name: 'Hide it' }).click()
    await page.locator('canvas').waitFor({ state: 'detached' })
    assert.equal((await page.content()).includes(secret), false)
  })
  assert.deepEqual((await api('GET', 'identity/entity/name/ana')).data.metadata, { team: 'payments' })
})

test('a second factor is set up: a method, one for oneself by a QR code, and the logins that need it', async () => {
  await api('POST', 'sys/auth/people', { type: 'userpass' })
  await policy('own-factor', 'path "identity/mfa/method/totp/generate" { capabilities = ["update"] } path "identity/mfa/method/totp" { capabilities = ["list"] }')
  await api('POST', 'auth/people/users/bo', { password: 'correct horse', token_policies: ['own-factor'] })
  await as(rootToken, 'mfa', async (page) => {
    await page.getByRole('button', { name: 'New method' }).click()
    await page.getByLabel('Name', { exact: true }).fill('tablet')
    await page.getByRole('button', { name: 'Save method' }).click()
    await sees(page.getByRole('table', { name: 'Methods' }).getByText('tablet'))
    await page.getByRole('button', { name: 'Change method tablet' }).click()
    assert.equal(await page.getByLabel('Issuer, as the app shows it').inputValue(), 'Coffer')
    await page.getByLabel('Digits', { exact: true }).selectOption('8')
    await page.getByLabel('A code is valid for').fill('60s')
    const sent = page.waitForRequest((r) => r.method() === 'POST' && r.url().includes('/mfa/method/totp/'))
    await page.getByRole('button', { name: 'Save method' }).click()
    assert.deepEqual(JSON.parse((await sent).postData()), { digits: '8', period: '60s' })
    await sees(page.getByRole('table', { name: 'Methods' }).getByText('8 digits, each 60 s'))
    await sees(page.locator('#no-entity'))
  })
  const login = async () => (await api('POST', 'auth/people/login/bo', { password: 'correct horse' }, '')).auth
  await as((await login()).client_token, 'mfa', async (page) => {
    assert.equal(await page.getByRole('button', { name: 'New method' }).count(), 0)
    await page.getByLabel('Method', { exact: true }).selectOption({ label: 'tablet' })
    await page.getByRole('button', { name: 'Enrol' }).click()
    await sees(page.locator('canvas[data-drawn]'))
    await page.getByRole('button', { name: 'Hide it' }).click()
    await page.getByLabel('Method', { exact: true }).selectOption({ label: 'tablet' })
    await page.getByRole('button', { name: 'Enrol' }).click()
    await sees(page.getByText('There is a secret already, and it stays.'))
  })
  await as(rootToken, 'mfa', async (page) => {
    await page.getByRole('button', { name: 'New enforcement' }).click()
    await page.getByLabel('Name', { exact: true }).fill('people')
    await page.getByRole('checkbox', { name: 'tablet' }).check()
    await page.getByRole('checkbox', { name: 'people/' }).check()
    await page.getByRole('button', { name: 'Save enforcement' }).click()
    const row = page.getByRole('table', { name: 'Enforcements' }).locator('[data-row=people]')
    await sees(row.getByText('people/'))
    assert.ok((await login()).mfa_requirement, 'the login waits for a code')
    await api('POST', 'identity/group', { name: 'night-shift' })
    await row.getByRole('button', { name: 'Change enforcement people' }).click()
    assert.equal(await page.getByRole('checkbox', { name: 'people/' }).isChecked(), true)
    await page.getByLabel('And for members of the groups').fill('night-shift')
    await page.getByRole('button', { name: 'Save enforcement' }).click()
    await sees(row.getByText('people/, group night-shift'))
    await row.getByRole('button', { name: 'Delete enforcement people' }).click()
    await page.getByRole('button', { name: 'Delete', exact: true }).last().click()
    await row.waitFor({ state: 'detached' })
    assert.ok((await login()).client_token)
    assert.deepEqual(await serious(page), [])
  })
})

test('a group gets members by name, and an external one an alias', async () => {
  await as(rootToken, 'groups', async (page) => {
    const make = async (name) => {
      await page.getByRole('button', { name: 'New group' }).click()
      await page.getByLabel('Name', { exact: true }).fill(name)
    }
    await make('Staff')
    await page.getByLabel('Policies', { exact: true }).fill('app-reader')
    await page.getByLabel('Entities, one in each line').fill('nobody')
    await page.getByRole('button', { name: 'Save group' }).click()
    await sees(page.getByText('There is no entity named nobody.'))
    await page.getByLabel('Entities, one in each line').fill('ana')
    await page.getByRole('button', { name: 'Save group' }).click()
    await sees(page.getByRole('heading', { name: 'Staff', exact: true }))
    await page.getByRole('link', { name: 'Ana', exact: true }).click()
    await sees(page.getByRole('link', { name: 'Staff', exact: true }))

    await page.goto(`${server.url}/ui/#/groups`)
    await make('developers')
    await page.getByLabel(/^external/).check()
    await page.getByRole('button', { name: 'Save group' }).click()
    await sees(page.getByText('no login makes a member of it'))
    await page.getByLabel('Name there').fill('dev')
    await page.getByLabel('Auth method', { exact: true }).selectOption({ label: 'userpass/ (userpass)' })
    await page.getByRole('button', { name: 'Add alias' }).click()
    await sees(page.getByRole('table', { name: 'Aliases' }).getByText('dev', { exact: true }))
    assert.deepEqual(await serious(page), [])
  })
})

test('all tokens are listed by their accessors and can be revoked', async () => {
  const { accessor } = (await api('POST', 'auth/token/create', { policies: ['app-reader'], display_name: 'leaked', ttl: '1h' })).auth
  await as(rootToken, 'tokens', async (page) => {
    await sees(page.locator(`[data-row="${accessor}"]`).getByText('token-leaked'))
    await page.getByRole('button', { name: `Revoke ${accessor}` }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke token' }).click()
    await page.locator(`[data-row="${accessor}"]`).waitFor({ state: 'detached' })
    assert.deepEqual(await serious(page), [])
  })
  await as(await tokenOf({ policies: ['policy-reader'] }), 'tokens', async (page) => {
    await sees(page.getByText('Your token may neither make nor look up others.'))
    assert.equal(await page.getByText('All tokens').count(), 0)
  })
})

const METADATA = (cert) => `<?xml version="1.0"?>
<md:EntityDescriptor xmlns:md="urn:oasis:names:tc:SAML:2.0:metadata" entityID="https://idp.example.com/a&amp;b">
  <md:IDPSSODescriptor protocolSupportEnumeration="urn:oasis:names:tc:SAML:2.0:protocol">
    <md:KeyDescriptor use="encryption"><ds:KeyInfo xmlns:ds="http://www.w3.org/2000/09/xmldsig#"><ds:X509Data><ds:X509Certificate>AAAA</ds:X509Certificate></ds:X509Data></ds:KeyInfo></md:KeyDescriptor>
    <md:KeyDescriptor use="signing"><ds:KeyInfo xmlns:ds="http://www.w3.org/2000/09/xmldsig#"><ds:X509Data><ds:X509Certificate>${cert}</ds:X509Certificate></ds:X509Data></ds:KeyInfo></md:KeyDescriptor>
    <md:SingleSignOnService Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-POST" Location="https://idp.example.com/post"/>
    <md:SingleSignOnService Binding="urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect" Location="https://idp.example.com/redirect"/>
  </md:IDPSSODescriptor>
</md:EntityDescriptor>`

test('a mount has a page: it is tuned, its users and roles are made, ids are shown once', async () => {
  await api('POST', 'sys/auth/approle', { type: 'approle' })
  await as(rootToken, 'engines/methods', async (page) => {
    await page.getByRole('link', { name: 'userpass/' }).click()
    await sees(page.getByRole('heading', { name: 'userpass/', exact: true }))
    await page.getByLabel('Description', { exact: true }).fill('people of the team')
    await page.getByLabel('Default lifetime').fill('2h')
    await page.getByRole('button', { name: 'Save settings' }).click()
    await sees(page.getByText('userpass/ changed'))
    await page.getByRole('button', { name: 'New user' }).click()
    await page.getByLabel('Name', { exact: true }).fill('bob')
    await page.getByLabel('Password', { exact: true }).fill('pw-of-bob')
    await page.getByLabel('Policies', { exact: true }).fill('app-reader')
    await page.getByRole('button', { name: 'Save user' }).click()
    await page.getByRole('button', { name: 'Change bob' }).click()
    await sees(page.locator('[name=token_policies]'))
    assert.equal(await page.locator('[name=token_policies]').inputValue(), 'app-reader')
    assert.equal(await page.getByLabel('Password', { exact: true }).inputValue(), '')
    assert.deepEqual(await serious(page), [])

    await page.goto(`${server.url}/ui/#/engines/methods/mount/approle`)
    await page.getByRole('button', { name: 'New role' }).click()
    await page.getByLabel('Name', { exact: true }).fill('app')
    await page.getByLabel('Policies', { exact: true }).fill('app-reader')
    await page.getByRole('button', { name: 'Save role' }).click()
    await page.getByRole('button', { name: 'Show the role id' }).click()
    await sees(page.getByText('Role id', { exact: true }))
    await page.getByRole('button', { name: 'Make a secret id' }).click()
    await page.getByRole('button', { name: 'Reveal Secret id' }).click()
    const secret = await page.locator('.once', { hasText: 'Secret id' }).locator('code').innerText()
    assert.match(secret, /^[0-9a-f-]{36}$/)
    assert.equal(await kept(page, secret), false)
    await page.locator('.shown', { hasText: 'Secret id' }).getByRole('button', { name: 'Put it away' }).click()
    assert.equal((await page.content()).includes(secret), false)
    assert.deepEqual(await serious(page), [])
  })
  const { data } = await api('GET', 'sys/auth/userpass')
  assert.deepEqual([data.description, data.config.default_lease_ttl], ['people of the team', 7200])
  await api('POST', 'auth/userpass/login/bob', { password: 'pw-of-bob' }, '')

  // Who may only list roles can neither make nor delete them.
  await policy('looks', 'path "sys/auth" { capabilities = ["read"] } path "auth/approle/role" { capabilities = ["list"] }')
  await as(await tokenOf({ policies: ['looks'] }), 'engines/methods/mount/approle', async (page) => {
    await sees(page.getByText('app', { exact: true }))
    for (const name of ['New role', 'Change app', 'Delete app', 'Save settings']) assert.equal(await page.getByRole('button', { name }).count(), 0, name)
  })
})

test('SAML is set up from the metadata of an identity provider, and says why a user is not admitted', async () => {
  await api('POST', 'sys/auth/saml', { type: 'saml' })
  await as(rootToken, 'engines/methods/mount/saml', async (page) => {
    await sees(page.getByText(/\/v1\/auth\/saml\/callback$/))
    await page.getByLabel("2. Take over the identity provider's metadata from a file").setInputFiles({ name: 'idp.xml', mimeType: 'text/xml', buffer: Buffer.from(METADATA('TUlJQg==')) })
    await page.waitForFunction(() => document.querySelector('[name=idp_sso_url]')?.value)
    assert.equal(await page.locator('[name=idp_entity_id]').inputValue(), 'https://idp.example.com/a&b')
    assert.equal(await page.locator('[name=idp_sso_url]').inputValue(), 'https://idp.example.com/redirect')
    assert.match(await page.locator('[name=idp_cert]').inputValue(), /^-----BEGIN CERTIFICATE-----\nTUlJQg==\n/)

    await page.getByRole('button', { name: 'New role' }).click()
    await page.getByLabel('Name', { exact: true }).fill('dev')
    await page.getByLabel('Attributes, a name=value,value in each line').last().fill('groups=dev,ops')
    await page.getByRole('button', { name: 'Save role' }).click()
    await page.getByLabel('Role to explain').fill('dev')
    await page.getByLabel('Subject', { exact: true }).fill('ana')
    await page.getByLabel('Attributes, a name=value,value in each line').first().fill('groups=sales')
    await page.getByRole('button', { name: 'Explain' }).click()
    await sees(page.locator('#explained', { hasText: 'not admitted' }))
    await sees(page.locator('#explained li', { hasText: 'expected dev or ops, was sales' }))
    assert.deepEqual(await serious(page), [])
  })
})

test('the audit log is searched by who, what, where and when, and for a value', async () => {
  await api('POST', 'sys/audit/file', { type: 'file', options: { file_path: 'ui-audit.log' } })
  await api('POST', 'sys/mounts/shelf', { type: 'kv' })
  await api('POST', 'shelf/app', { password: 'a-value-to-find' })
  const token = await tokenOf({ policies: ['policy-reader'], display_name: 'eve' })
  await assert.rejects(api('GET', 'shelf/app', undefined, token), /403/)
  await as(rootToken, 'audit/search', async (page) => {
    const search = async () => {
      await page.getByRole('button', { name: 'Search', exact: true }).click()
      await sees(page.locator('#matches'))
    }
    await page.getByLabel('Path begins with').fill('shelf/')
    await search()
    await sees(page.locator('#matches', { hasText: /^2 records/ }))
    assert.ok((await page.locator('figure rect').count()) > 0, 'a histogram')
    await page.getByLabel('Who', { exact: true }).fill('token-eve')
    await page.getByLabel('Outcome').selectOption({ label: 'denied' })
    await search()
    await sees(page.locator('#matches', { hasText: /^1 record / }))
    await page.getByRole('button', { name: 'Details of record 1' }).click()
    await sees(page.getByText('127.0.0.1').first())
    assert.deepEqual(await serious(page), [])

    await page.getByLabel('Who', { exact: true }).fill('')
    await page.getByLabel('Outcome').selectOption({ label: 'any' })
    await page.getByLabel('A value', { exact: true }).fill('a-value-to-find')
    await search()
    await sees(page.getByText('Searching for a value by its hash.'))
    await sees(page.locator('#matches', { hasText: /^1 record / }))
    assert.equal(await page.getByLabel('A value', { exact: true }).inputValue(), '')
    assert.equal(await kept(page, 'a-value-to-find'), false)
  })
  await policy('audits', 'path "sys/audit" { capabilities = ["read", "sudo"] }')
  await as(await tokenOf({ policies: ['audits'] }), 'audit/search', async (page) => {
    await sees(page.getByText('Your token may not search the audit log'))
  })
})
