// Logins with identity providers that others wrote, through their own login pages in a real browser, on the clusters of
// test/system/saml: "us" has three nodes, "eu" is a secondary of it. Run it with `make e2e`.

import assert from 'node:assert/strict'
import { createHash, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { after, before, test } from 'node:test'
import { startBrowser } from '../server.js'
import { eu, us } from './cluster.js'
import { makeDirectory, start } from './process.js'
import { startPysaml2 } from './pysaml2.js'
import { startSamlp } from './samlp.js'
import { startSimpleSAML } from './simplesaml.js'

const here = new URL('.', import.meta.url).pathname
const users = {
  ada: { password: 'correct horse', attributes: { mail: ['ada@example.org'], groups: ['engineers', 'staff'] } },
  eve: { password: 'battery staple', attributes: { mail: ['eve@example.org'], groups: ['visitors'] } },
}
const entityID = 'urn:example:coffer'
const callbacks = (mount) => [...us.nodes, ...eu.nodes].map((node) => `${node}/v1/${mount}/callback`)

let browser, simple, samlp, pysaml2, home

before(async () => {
  ;[browser, simple, samlp, home] = await Promise.all([
    startBrowser(),
    startSimpleSAML(users),
    startSamlp(users, [...callbacks('auth/samlp'), ...callbacks('team/auth/people')]),
    makeDirectory('home'),
  ])
  await us.must('POST', 'sys/mounts/plans', { type: 'kv' })
  await us.must('POST', 'plans/next', { word: 'swordfish' })
  await us.must('POST', 'sys/policies/acl/staff', { policy: 'path "plans/*" { capabilities = ["read"] }' })
  for (const mount of ['saml', 'samlp', 'pysaml2']) {
    await us.must('POST', `sys/auth/${mount}`, { type: 'saml' })
    for (const [role, group] of [['engineers', 'engineers'], ['managers', 'managers']]) {
      await us.must('POST', `auth/${mount}/role/${role}`, { bound_attributes: { groups: group }, groups_attribute: 'groups', token_ttl: '10m' })
    }
  }
  // SimpleSAMLphp is configured by its metadata, samlp by what its administrator would copy from its page, pysaml2 by metadata again.
  await us.must('POST', 'auth/saml/config', {
    idp_metadata_url: simple.metadataURL,
    entity_id: entityID,
    acs_urls: callbacks('auth/saml'),
    default_role: 'engineers',
  })
  await us.must('POST', 'auth/samlp/config', {
    idp_sso_url: samlp.ssoURL,
    idp_entity_id: samlp.entityID,
    idp_cert: samlp.cert,
    entity_id: entityID,
    acs_urls: callbacks('auth/samlp'),
  })
  await trustUs()
  // Whom the identity provider calls staff is in an external group.
  const { body } = await us.must('GET', 'sys/auth')
  const group = await us.must('POST', 'identity/group', { name: 'staff', type: 'external', policies: ['staff'] })
  await us.must('POST', 'identity/group-alias', {
    name: 'staff',
    mount_accessor: body.data['saml/'].accessor,
    canonical_id: group.body.data.id,
  })
})

after(async () => {
  await browser?.close()
  for (const idp of [simple, samlp, pysaml2]) await idp?.stop()
  await home?.remove()
})

/** Makes us known to SimpleSAMLphp as we describe ourselves. */
async function trustUs() {
  const { text, headers } = await us.must('GET', 'auth/saml/metadata', undefined, { as: '' })
  assert.match(headers['content-type'], /^application\/samlmetadata\+xml/)
  await simple.trust(text)
}

/** Starts a login as a client would. The answer is posted to the node acs, and the login redeemed at the node finish. */
async function begin({ mount = 'auth/saml', cluster = us, at = 1, acs = 2, finish = 0, method = 'POST', ...fields } = {}) {
  const verifier = randomUUID()
  const acsURL = `${cluster.nodes[acs]}/v1/${mount}/callback`
  const { body } = await cluster.must(
    method,
    `${mount}/sso_service_url`,
    {
      role: 'engineers',
      client_challenge: createHash('sha256').update(verifier).digest('base64'),
      client_type: 'cli',
      acs_url: acsURL,
      ...fields,
    },
    { node: cluster.nodes[at], as: '' },
  )
  const poll = { client_verifier: verifier, token_poll_id: body.data.token_poll_id }
  return {
    ...body.data,
    url: body.data.sso_service_url,
    acsURL,
    redeem: () => cluster.call(method, `${mount}/token`, poll, { node: cluster.nodes[finish], as: '' }),
  }
}

/** Fills in the identity provider's form. */
async function fill(page, name, password = users[name].password) {
  await page.locator('[name=username]').fill(name)
  await page.locator('[name=password]').fill(password)
  await page.locator('button').first().click()
}

/** Runs work with a page of a browser that nobody is logged in with. */
async function withPage(work) {
  const context = await browser.newContext({ ignoreHTTPSErrors: true })
  try {
    const page = await context.newPage()
    page.setDefaultTimeout(60_000)
    return await work(page)
  } finally {
    await context.close()
  }
}

/** What the callback answered to the identity provider's post, and that post. */
async function callbackOf(page, act) {
  let [response] = await Promise.all([page.waitForResponse((r) => r.url().endsWith('/callback')), act()])
  while (response.status() === 503) response = await page.reload() // as a user would, while there is no leader
  const headers = response.headers()
  assert.match(headers['content-security-policy'], /default-src 'none'/)
  assert.match(headers['cache-control'], /no-store/)
  await page.waitForLoadState()
  const post = new URLSearchParams(response.request().postData())
  const yes = page.locator('button.yes')
  if ((await response.text()).includes('class="yes"')) { // the login is confirmed on the page that shows its code
    ;[response] = await Promise.all([page.waitForResponse((r) => r.url().endsWith('/callback')), yes.click()])
    await page.waitForLoadState()
  }
  return { url: response.url(), status: response.status(), text: await page.locator('body').innerText(), post }
}

/** Logs in at the identity provider, in a browser of its own. */
function logIn(url, name = 'ada') {
  return withPage(async (page) => {
    await page.goto(url)
    if (page.url().includes('/go/')) await page.locator('button.yes').click() // a short link asks first
    return callbackOf(page, () => fill(page, name))
  })
}

/** The answer of the identity provider as XML. */
const xmlOf = (post) => Buffer.from(post.get('SAMLResponse'), 'base64').toString()

/** A whole login that has to succeed; it returns the token's auth. */
async function succeed(options, name = 'ada') {
  const login = await begin(options)
  assert.equal((await login.redeem()).status, 401, 'pending')
  const page = await logIn(login.url, name)
  assert.equal(page.status, 200, page.text)
  assert.equal(page.url, login.acsURL)
  const answer = await login.redeem()
  assert.equal(answer.status, 200, answer.text)
  return { auth: answer.body.auth, post: page.post, login }
}

/** A login whose answer has to be rejected by the callback, which says nothing of the reason; the login stays pending. */
async function disbelieved(options) {
  const login = await begin(options)
  const page = await logIn(login.url)
  assert.ok(page.status >= 400, `status ${page.status}`)
  assert.doesNotMatch(page.text, /ada@example\.org|signature|certificate/i)
  assert.equal((await login.redeem()).status, 401, 'such an answer ends no login')
}

/** bin/coffer, with a browser that hands URLs to us. */
async function coffer(args, node = us.nodes[1]) {
  let opened
  const url = new Promise((resolve) => (opened = resolve))
  const listener = createServer(async (req, res) => {
    opened(Buffer.concat(await req.toArray()).toString())
    res.end()
  }).listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const child = start(process.env.COFFER_BIN, args, {
    env: {
      PATH: process.env.PATH,
      HOME: home.path,
      COFFER_ADDR: node,
      COFFER_CACERT: us.ca,
      BROWSER: `${process.execPath} ${here}opener.js`,
      COFFER_E2E_BROWSER: `http://127.0.0.1:${listener.address().port}`,
    },
  })
  child.ended.then(() => listener.close())
  return { ...child, url }
}

test('cli: bin/coffer logs in through SimpleSAMLphp; the answer goes to another node', async () => {
  const [, at, acs] = us.nodes
  const child = await coffer(['login', '-method=saml', 'role=engineers', `acs_url=${acs}/v1/auth/saml/callback`], at)
  try {
    const [, code] = await child.until(/code ([A-Z0-9]{4}-[A-Z0-9]{4})/)
    const url = await child.url
    assert.ok(child.output().split('\n').includes(url), 'the URL is on a line of its own')
    await withPage(async (page) => {
      await page.goto(url)
      await fill(page, 'ada', 'wrong')
      await page.getByText('Incorrect username or password').first().waitFor()
      const shown = await callbackOf(page, () => fill(page, 'ada'))
      assert.equal(shown.status, 200)
      assert.equal(shown.url, `${acs}/v1/auth/saml/callback`)
      for (const what of [code, 'engineers', 'ada@example.org']) assert.ok(shown.text.includes(what), `${what} in: ${shown.text}`)
      assert.doesNotMatch(await page.content(), /hvs\./)
    })
    assert.equal(await child.ended, 0, child.output())
  } finally {
    await child.stop()
  }
  const lookup = await coffer(['token', 'lookup', '-format=json'])
  assert.equal(await lookup.ended, 0, lookup.output())
  const { data } = JSON.parse(lookup.output())
  assert.equal(data.display_name, 'saml-ada@example.org')
  assert.equal(data.path, 'auth/saml/token')
  assert.equal(data.meta.role, 'engineers')
})

test('cli: a role that does not take the user ends bin/coffer with the reason', async () => {
  const child = await coffer(['login', '-method=saml', 'role=managers', `acs_url=${us.nodes[2]}/v1/auth/saml/callback`])
  try {
    const page = await logIn(await child.url)
    assert.equal(page.status, 403)
    assert.notEqual(await child.ended, 0)
    assert.match(child.output(), /groups/, 'the attribute that was not as the role wants it')
    assert.doesNotMatch(child.output(), /hvs\./)
  } finally {
    await child.stop()
  }
})

/** Opens the web UI of a node and starts a login there. */
async function startByUI(page, role, node = us.nodes[1]) {
  await page.goto(`${node}/ui/`)
  await page.getByRole('button', { name: 'SAML', exact: true }).click()
  await page.getByLabel('Role', { exact: true }).fill(role)
  await page.getByRole('button', { name: 'Sign in with SAML', exact: true }).click()
}

/** The same, up to the identity provider's page in the popup. */
async function signInByUI(page, role, node) {
  const [popup] = await Promise.all([page.waitForEvent('popup'), startByUI(page, role, node)])
  await popup.locator('[name=username]').waitFor()
  return popup
}

/** Waits until the web UI shows its pages, and looks up the token it has. */
async function tokenOfUI(page, cluster = us) {
  await page.getByRole('navigation', { name: 'Main' }).waitFor()
  const stored = await page.evaluate(() => Object.values(sessionStorage))
  const { body } = await cluster.must('GET', 'auth/token/lookup-self', undefined, { as: stored.find((v) => v.startsWith('hvs.')) })
  return body.data
}

test('browser: the web UI signs in through a popup', async () => {
  await withPage(async (page) => {
    const faults = []
    page.on('pageerror', (e) => faults.push(e.message))
    const popup = await signInByUI(page, 'engineers')
    assert.match(await page.locator('#verification-code').innerText(), /^[A-Z0-9]{4}-[A-Z0-9]{4}$/)
    await Promise.all([popup.waitForEvent('close'), fill(popup, 'ada')])
    assert.equal((await tokenOfUI(page)).display_name, 'saml-ada@example.org')
    assert.deepEqual(faults, [])
  })
})

test('browser: the web UI says why a login was denied', async () => {
  await withPage(async (page) => {
    await fill(await signInByUI(page, 'managers'), 'ada')
    await page.getByRole('alert').getByText('groups').waitFor()
  })
})

test('browser: the popup is closed, cancelled, or blocked', async () => {
  await withPage(async (page) => {
    let popup = await signInByUI(page, 'engineers')
    await popup.close()
    await page.bringToFront()
    await page.getByRole('alert').getByText('closed before you were done').waitFor()

    popup = await signInByUI(page, 'engineers')
    const cancel = page.getByRole('button', { name: 'Cancel', exact: true }).click()
    await Promise.all([popup.waitForEvent('close'), cancel])
    await page.getByRole('heading', { name: 'Sign in', exact: true }).waitFor()
    assert.equal(await page.getByRole('alert').count(), 0)
  })
  await withPage(async (page) => {
    await page.addInitScript(() => {
      window.open = () => null
    })
    await startByUI(page, 'engineers')
    const link = page.getByRole('link', { name: 'Open the sign-in page', exact: true }).click()
    const [opened] = await Promise.all([page.context().waitForEvent('page'), link])
    await fill(opened, 'ada')
    assert.equal((await tokenOfUI(page)).display_name, 'saml-ada@example.org')
  })
})

test('the page of a browser login is blank', async () => {
  const login = await begin({ client_type: 'browser' })
  const page = await logIn(login.url)
  assert.equal(page.status, 200)
  assert.equal(page.text.trim(), '')
})

test('groups become policies through an external group', async () => {
  const { auth } = await succeed()
  assert.deepEqual(auth.identity_policies, ['staff'])
  assert.equal(auth.metadata.role, 'engineers')
  assert.equal(auth.lease_duration, 600)
  const { body } = await us.must('GET', 'plans/next', undefined, { as: auth.client_token })
  assert.equal(body.data.word, 'swordfish')
  const entity = await us.must('GET', `identity/entity/id/${auth.entity_id}`)
  assert.deepEqual(entity.body.data.aliases.map((a) => a.name), ['ada@example.org'])
})

test('a role that does not take the user: page, poll and explanation', async () => {
  const login = await begin({ role: 'managers' })
  const page = await logIn(login.url)
  assert.equal(page.status, 403)
  const answer = await login.redeem()
  assert.equal(answer.status, 403)
  assert.match(answer.body.errors[0], /groups/)
  assert.doesNotMatch(answer.body.errors[0], /managers.*would|hvs\./)
  const { body } = await us.must('POST', 'auth/saml/role/managers/explain', {})
  assert.equal(body.data.admitted, false)
  assert.equal(body.data.subject, 'ada@example.org')
  const check = body.data.checks.find((c) => c.name === 'groups')
  assert.deepEqual([check.given, check.expected, check.passed], [['engineers', 'staff'], ['managers'], false])
})

test('a replayed answer is rejected on every node, before and after the login is redeemed, and for another login', async () => {
  const login = await begin()
  const { post } = await logIn(login.url)
  async function replay(form, node) {
    const again = await us.call('POST', 'auth/saml/callback', form, { node, as: '' })
    assert.equal(again.status, 400, `${node}: ${again.text}`)
    assert.match(again.headers['content-type'], /^text\/html/)
  }
  for (const node of us.nodes) await replay(post, node)
  assert.equal((await login.redeem()).status, 200, 'a replay does no harm')
  for (const node of us.nodes) await replay(post, node)
  assert.equal((await login.redeem()).status, 400, 'redeemed once')

  const other = await begin()
  const RelayState = new URL(other.url).searchParams.get('RelayState')
  await replay(new URLSearchParams({ SAMLResponse: post.get('SAMLResponse'), RelayState }), us.nodes[2])
  assert.equal((await other.redeem()).status, 401)
})

test('SimpleSAMLphp signs the response, the assertion, or both', async (t) => {
  t.after(async () => {
    await simple.configure()
    await us.must('POST', 'auth/saml/config', { validate_response_signature: false, validate_assertion_signature: false })
  })
  for (const [sign, signatures] of [['response', 1], ['assertion', 1], ['both', 2]]) {
    await simple.configure({ sign })
    const { post } = await succeed()
    assert.equal(xmlOf(post).match(/<ds:SignatureValue>/g).length, signatures, sign)
  }
  await us.must('POST', 'auth/saml/config', { validate_response_signature: true, validate_assertion_signature: true })
  await simple.configure({ algorithm: 'rsa-sha512' })
  assert.match(xmlOf((await succeed()).post), /xmldsig-more#rsa-sha512/)
  await simple.configure({ sign: 'response' })
  await disbelieved()
  await simple.configure({ sign: 'assertion' })
  await disbelieved()
})

test('SimpleSAMLphp verifies signed requests', async (t) => {
  t.after(async () => {
    await us.must('POST', 'auth/saml/config', { sign_authn_requests: false })
    await trustUs()
  })
  const refuses = (url, why = 'Unable to validate signature') =>
    withPage(async (page) => {
      await page.goto(url)
      const shown = await page.locator('body').innerText()
      assert.ok(shown.includes(why), `not refused with "${why}": ${shown.slice(0, 500)}`)
    })

  await us.must('POST', 'auth/saml/config', { sign_authn_requests: true })
  await trustUs()
  await succeed()
  await refuses((await begin()).url.replace(/RelayState=[^&]+/, 'RelayState=another'))

  const former = (await begin()).url
  await us.must('POST', 'auth/saml/config/rotate-signing-key')
  await refuses((await begin()).url) // it does not know the new key yet
  await trustUs()
  await succeed()
  await refuses(former)

  await us.must('POST', 'auth/saml/config', { sign_authn_requests: false })
  await refuses((await begin()).url, 'no signature found on message') // we told it that all requests are signed
})

test('SimpleSAMLphp changes its key: announced in its metadata, or two certificates configured', async (t) => {
  t.after(async () => {
    await simple.configure()
    await us.must('POST', 'auth/saml/config', { idp_metadata_url: simple.metadataURL })
    await us.must('POST', 'auth/saml/config/verify')
  })
  await simple.configure({ next: true })
  const { body } = await us.must('POST', 'auth/saml/config/verify')
  assert.equal(body.data.certificates.length, 2)
  await succeed()
  await simple.configure({ key: 1 })
  await succeed()

  const explicit = { idp_sso_url: simple.ssoURL, idp_entity_id: simple.entityID }
  await us.must('POST', 'auth/saml/config', { ...explicit, idp_cert: simple.keys[0].cert })
  await disbelieved()
  await us.must('POST', 'auth/saml/config', { idp_cert: simple.keys[0].cert + simple.keys[1].cert })
  await succeed()
  await simple.configure({ key: 0 })
  await succeed()
})

test('a login that begins at SimpleSAMLphp gives a code, if that is allowed', async (t) => {
  t.after(() => us.must('POST', 'auth/saml/config', { allow_idp_initiated: false }))
  const acsURL = `${us.nodes[2]}/v1/auth/saml/callback`
  const url = `${simple.ssoURL}?${new URLSearchParams({ spentityid: entityID, ConsumerURL: acsURL })}`
  assert.ok((await logIn(url)).status >= 400, 'off by default')

  await us.must('POST', 'auth/saml/config', { allow_idp_initiated: true })
  const codes = []
  for (let i = 0; i < 3; i++) {
    const page = await logIn(url)
    assert.equal(page.status, 200, page.text)
    assert.equal(page.url, acsURL)
    const [, code] = /code=(\S+)/.exec(page.text)
    codes.push(code)
  }
  const answer = await us.call('POST', 'auth/saml/token', { code: codes[0] }, { node: us.nodes[1], as: '' })
  assert.equal(answer.status, 200, answer.text)
  assert.equal(answer.body.auth.metadata.role, 'engineers')
  assert.equal((await us.call('POST', 'auth/saml/token', { code: codes[0] }, { as: '' })).status, 400)

  const child = await coffer(['login', '-method=saml', '-format=json', `code=${codes[1]}`])
  assert.equal(await child.ended, 0, child.output())
  assert.match(child.output(), /hvs\./)

  // Whoever comes to a listed mount's sign-in page finds SAML chosen.
  await us.must('POST', 'sys/auth/saml/tune', { listing_visibility: 'unauth' })
  await withPage(async (page) => {
    await page.goto(`${us.nodes[1]}/ui/`)
    await page.getByLabel('Sign in through', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'I have a sign-in code', exact: true }).click()
    await page.getByLabel('Sign-in code', { exact: true }).fill(codes[2])
    await page.getByRole('button', { name: 'Sign in', exact: true }).click()
    assert.equal((await tokenOfUI(page)).meta.role, 'engineers')
  })
})

test('a short link leads to the identity provider, once', async () => {
  const login = await begin({ short_link: true })
  assert.ok(login.short_url.length < 120, login.short_url)
  const page = await logIn(login.short_url)
  assert.equal(page.status, 200)
  assert.equal((await login.redeem()).status, 200)
  const { status, text } = await us.call('GET', new URL(login.short_url).pathname, undefined, { as: '' })
  assert.ok(status >= 400, `the link worked twice: ${status}`)
  assert.ok(!text.includes(simple.ssoURL))
})

test('a login survives that another node becomes the leader, before and after the answer', async () => {
  const leaderOf = async (node) => (await us.must('GET', 'sys/leader', undefined, { node, as: '' })).body.leader_address
  async function stepDown() {
    const leader = await eventually(async () => {
      const address = await leaderOf(us.nodes[0])
      assert.ok(us.nodes.includes(address))
      return address
    })
    await us.must('PUT', 'sys/step-down', undefined, { node: leader })
    await eventually(async () => {
      const address = await leaderOf(us.nodes[0])
      assert.ok(us.nodes.includes(address) && address !== leader)
    })
  }
  const login = await begin()
  await stepDown()
  assert.equal((await login.redeem()).status, 401)
  assert.equal((await logIn(login.url)).status, 200)
  await stepDown()
  const { status, body } = await login.redeem()
  assert.equal(status, 200)
  assert.equal(body.auth.metadata.role, 'engineers')
  assert.equal((await login.redeem()).status, 400)
})

test('on a secondary, through its own URL', async () => {
  await eventually(async () => {
    const { status, text } = await eu.call('GET', 'auth/saml/config')
    assert.equal(status, 200, text)
    assert.equal(JSON.parse(text).data.idp_metadata_url, simple.metadataURL)
  })
  const { auth } = await succeed({ cluster: eu, at: 0, acs: 1, finish: 0 })
  const { body } = await eu.must('GET', 'auth/token/lookup-self', undefined, { as: auth.client_token })
  assert.equal(body.data.display_name, 'saml-ada@example.org')
  assert.equal((await eu.must('GET', 'plans/next', undefined, { as: auth.client_token })).body.data.word, 'swordfish')
  const elsewhere = await us.call('GET', 'auth/token/lookup-self', undefined, { as: auth.client_token })
  assert.equal(elsewhere.status, 403, 'a token is of one cluster')

  await withPage(async (page) => {
    const popup = await signInByUI(page, 'engineers', eu.nodes[1])
    await fill(popup, 'ada')
    assert.equal((await tokenOfUI(page, eu)).meta.role, 'engineers')
  })
})

test('samlp: an existing client, which puts, and posts the answer as JSON', async () => {
  const login = await begin({ mount: 'auth/samlp', method: 'PUT' })
  const pending = await login.redeem()
  assert.equal(pending.status, 401)
  assert.equal(pending.body.errors.length, 1)
  const form = await fetch(login.url, { method: 'POST', body: new URLSearchParams({ username: 'ada', password: users.ada.password }) })
  const [, response] = /name="SAMLResponse"\s+value="([^"]+)"/.exec(await form.text())
  const RelayState = new URL(login.url).searchParams.get('RelayState')
  const page = await us.call('PUT', 'auth/samlp/callback', { SAMLResponse: response, RelayState }, { node: us.nodes[2], as: '' })
  assert.equal(page.status, 200, page.text)
  assert.match(page.headers['content-type'], /^text\/html/)
  assert.equal((await login.redeem()).status, 401, 'the user has to confirm it on that page')
  const [, confirmation] = /name="confirmation" value="([^"]+)"/.exec(page.text)
  const confirmed = await us.call('PUT', 'auth/samlp/callback', { confirmation, decision: 'confirm' }, { node: us.nodes[2], as: '' })
  assert.equal(confirmed.status, 200, confirmed.text)
  const { status, body } = await login.redeem()
  assert.equal(status, 200)
  assert.equal(body.auth.metadata.role, 'engineers')
})

test('samlp signs the response, the assertion, or both, in its ways', async (t) => {
  t.after(() => samlp.configure())
  for (const options of [
    { signResponse: false, signAssertion: true },
    { signResponse: true, signAssertion: false },
    { signResponse: true, signAssertion: true, signatureNamespacePrefix: 'ds', sessionIndex: '_1' },
    { signatureNamespacePrefix: 'dsig', typedAttributes: false, includeAttributeNameFormat: false },
  ]) {
    samlp.configure(options)
    const { auth } = await succeed({ mount: 'auth/samlp' })
    assert.equal(auth.metadata.role, 'engineers', JSON.stringify(options))
  }
  samlp.configure({ signResponse: true, signatureAlgorithm: 'rsa-sha1', digestAlgorithm: 'sha1' })
  await disbelieved({ mount: 'auth/samlp' })
})

test('samlp: a wrong password, a user whom the role does not take, a user who says no', async () => {
  await withPage(async (page) => {
    const login = await begin({ mount: 'auth/samlp' })
    await page.goto(login.url)
    await fill(page, 'ada', 'wrong')
    await page.getByText('Wrong name or password').waitFor()
    assert.equal((await login.redeem()).status, 401)
    await callbackOf(page, () => fill(page, 'eve'))
    const answer = await login.redeem()
    assert.equal(answer.status, 403)
    assert.match(answer.body.errors[0], /groups/)
  })
  await withPage(async (page) => {
    const login = await begin({ mount: 'auth/samlp' })
    await page.goto(login.url)
    const shown = await callbackOf(page, () => page.getByRole('button', { name: 'Cancel' }).click())
    assert.equal(shown.status, 403)
    const answer = await login.redeem()
    assert.equal(answer.status, 403, 'the identity provider signed that nobody logged in')
  })
})

test('samlp: a mount in a namespace', async () => {
  await us.must('POST', 'sys/namespaces/team')
  await us.must('POST', 'team/sys/auth/people', { type: 'saml' })
  const { idp_sso_url, idp_entity_id, idp_cert, entity_id } = (await us.must('GET', 'auth/samlp/config')).body.data
  const acs_urls = callbacks('team/auth/people')
  await us.must('POST', 'team/auth/people/config', { idp_sso_url, idp_entity_id, idp_cert, entity_id, acs_urls })
  await us.must('POST', 'team/auth/people/role/engineers', { bound_subjects: '*@example.org', bound_subjects_type: 'glob' })
  const { auth } = await succeed({ mount: 'team/auth/people' })
  const { body } = await us.must('GET', 'team/auth/token/lookup-self', undefined, { as: auth.client_token })
  assert.equal(body.data.path, 'auth/people/token')
  assert.equal((await us.call('GET', 'sys/mounts', undefined, { as: auth.client_token })).status, 403) // of the root namespace
})

test('pysaml2 signs with an elliptic curve', async () => {
  const config = { entity_id: entityID, acs_urls: callbacks('auth/pysaml2') }
  // What it has to know of us does not depend on it, so it can be configured first.
  await us.must('POST', 'auth/pysaml2/config', { ...config, idp_metadata_url: 'http://127.0.0.1:1/' })
  const { text } = await us.must('GET', 'auth/pysaml2/metadata', undefined, { as: '' })
  pysaml2 = await startPysaml2(users, text)
  await us.must('POST', 'auth/pysaml2/config', { idp_metadata_url: pysaml2.metadataURL })
  const { auth, post } = await succeed({ mount: 'auth/pysaml2' })
  assert.match(xmlOf(post), /xmldsig-more#ecdsa-sha256/)
  assert.equal(auth.metadata.role, 'engineers')
})

/** Waits until work no longer throws; for what another cluster gets to know a moment later. */
async function eventually(work) {
  for (const deadline = Date.now() + 60_000; ; ) {
    try {
      return await work()
    } catch (e) {
      if (Date.now() > deadline) throw e
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }
}
