// The pages of engines and auth methods: what is in a mount is made, listed, changed and deleted. Plugins are there if they are built.

import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { createServer } from 'node:http'
import { after, before, test } from 'node:test'
import { openPage, startUse } from './server.js'

const plugins = process.env.COFFER_PLUGINS ?? new URL('../../bin/plugins', import.meta.url).pathname
const built = existsSync(`${plugins}/plugins.json`)
const sees = (locator) => locator.first().waitFor()
let use, cloud

/** IAM and STS of a user with keys, as far as a root key and temporary credentials need them. */
async function startCloud() {
  const keys = ['AKIAFIRSTFIRSTFIRST1']
  const answers = {
    GetCallerIdentity: () => '<Arn>arn:aws:iam::123456789012:user/root-user</Arn><UserId>AIDA1</UserId><Account>123456789012</Account>',
    GetUser: () => '<User><UserName>root-user</UserName><UserId>AIDA1</UserId><Path>/</Path><Arn>arn:aws:iam::123456789012:user/root-user</Arn><CreateDate>2026-01-01T00:00:00Z</CreateDate></User>',
    ListAccessKeys: () => `<IsTruncated>false</IsTruncated><AccessKeyMetadata>${keys.map((k) => `<member><UserName>root-user</UserName><AccessKeyId>${k}</AccessKeyId><Status>Active</Status><CreateDate>2026-01-01T00:00:00Z</CreateDate></member>`).join('')}</AccessKeyMetadata>`,
    CreateAccessKey: () => `<AccessKey><UserName>root-user</UserName><AccessKeyId>${(keys.push('AKIASECONDSECOND0002'), keys.at(-1))}</AccessKeyId><Status>Active</Status><SecretAccessKey>of-the-second-key-of-the-second-key-0002</SecretAccessKey><CreateDate>2026-01-02T00:00:00Z</CreateDate></AccessKey>`,
    DeleteAccessKey: (q) => (keys.splice(keys.indexOf(q.get('AccessKeyId')), 1), ''),
    AssumeRole: () => '<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/dev/x</Arn><AssumedRoleId>AROA1:x</AssumedRoleId></AssumedRoleUser><Credentials><AccessKeyId>ASIATEMPORARY0000001</AccessKeyId><SecretAccessKey>a-secret-that-is-issued</SecretAccessKey><SessionToken>a-session</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>',
  }
  const http = createServer(async (req, res) => {
    let text = ''
    for await (const chunk of req) text += chunk
    const query = new URLSearchParams(text)
    const action = query.get('Action')
    if (!answers[action]) return res.writeHead(400).end(`<ErrorResponse><Error><Code>InvalidAction</Code><Message>${action}</Message></Error></ErrorResponse>`)
    res.end(`<${action}Response><${action}Result>${answers[action](query)}</${action}Result><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></${action}Response>`)
  })
  await new Promise((resolve) => http.listen(0, '127.0.0.1', resolve))
  return { keys, url: `http://127.0.0.1:${http.address().port}`, stop: () => (http.closeAllConnections(), http.close()) }
}

before(async () => {
  cloud = await startCloud()
  use = await startUse({ more: built ? `plugin_directory = "${plugins}"` : '' })
  for (const type of ['approle', 'cert', ...(built ? ['jwt', 'kubernetes'] : [])]) await use.api('POST', `sys/auth/${type}`, { type })
  await use.api('POST', 'sys/mounts/cloud', { type: 'cloud' })
})

after(async () => {
  await use?.stop()
  cloud?.stop()
})

/** Makes a role with what is filled in, finds a value again when it is changed, changes it, and deletes the role. */
async function life(page, { kind = 'role', fill, change: [label, value] }) {
  await page.getByRole('button', { name: `New ${kind}`, exact: true }).click()
  await page.getByLabel('Name', { exact: true }).fill('app')
  for (const [name, text] of Object.entries(fill)) await page.getByLabel(name, { exact: true }).fill(text)
  await page.getByRole('button', { name: `Save ${kind}`, exact: true }).click()
  for (const text of [fill[label] ?? '', value]) {
    await page.getByRole('button', { name: 'Change app' }).click()
    const field = page.locator('tr.below').getByLabel(label, { exact: true })
    await sees(field)
    assert.equal(await field.inputValue(), text)
    if (text === value) break
    await field.fill(value)
    await page.getByRole('button', { name: `Save ${kind}`, exact: true }).click()
    await field.waitFor({ state: 'detached' })
  }
  await page.getByRole('button', { name: 'Delete app' }).click()
  await page.getByRole('dialog').getByRole('button', { name: `Delete ${kind}` }).click()
  await sees(page.getByText('There is none yet.'))
}

const at = (type, work) => use.as(use.rootToken, `engines/methods/mount/${type}`, work)

test('AppRole: a role is changed and deleted', () =>
  at('approle', (page) => life(page, { fill: { Policies: 'reader', 'Logins of a secret id': '1' }, change: ['Logins of a secret id', '5'] })))

test('certificates: a role has its CA as PEM', () => {
  const pem = execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-subj', '/CN=ca', '-days', '2', '-keyout', '/dev/null'], { stdio: ['ignore', 'pipe', 'ignore'] })
  return at('cert', (page) => life(page, { fill: { Certificate: pem.toString(), 'Common names': 'app-*', Policies: 'reader' }, change: ['Common names', 'web-*'] }))
})

test('JWT: the issuer is configured, and a role names its claims', { skip: !built && 'the plugin is not built' }, async () => {
  const { publicKey } = (await import('node:crypto')).generateKeyPairSync('ec', { namedCurve: 'P-256' })
  await use.api('POST', 'auth/jwt/config', { jwt_validation_pubkeys: [publicKey.export({ type: 'spki', format: 'pem' })] })
  await at('jwt', async (page) => {
    await page.getByLabel('Issuer that tokens must name').fill('https://issuer.example.com')
    await page.getByRole('button', { name: 'Save configuration' }).click()
    await sees(page.getByText('Configuration saved'))
    assert.equal((await use.api('GET', 'auth/jwt/config')).data.jwt_validation_pubkeys.length, 1, 'what was not changed stays')
    await life(page, { fill: { 'Claim that names the user': 'sub', Audiences: 'coffer', Policies: 'reader' }, change: ['Audiences', 'other'] })
  })
})

test('Kubernetes: the API server is configured, and a role names service accounts', { skip: !built && 'the plugin is not built' }, () =>
  at('kubernetes', async (page) => {
    await page.getByLabel('Address of the API server').fill('https://kubernetes.example.com')
    await page.getByLabel('This server is not in that cluster').check()
    await page.getByRole('button', { name: 'Save configuration' }).click()
    await sees(page.getByText('Configuration saved'))
    await life(page, { fill: { 'Service accounts': 'app', Namespaces: 'default', Policies: 'reader' }, change: ['Service accounts', 'web'] })
  }))

test('cloud: credentials are issued and shown once, and the root key gets an age when it is replaced', async () => {
  await use.api('POST', 'cloud/config/root', { access_key: cloud.keys[0], secret_key: 'of-the-first-key', region: 'eu-west-1', iam_endpoint: cloud.url, sts_endpoint: cloud.url })
  await use.as(use.rootToken, 'engines/mount/cloud', async (page) => {
    const root = page.locator('section', { has: page.getByRole('heading', { name: 'Root key' }) })
    await sees(root.getByText('not known: before its first rotation'))
    await page.getByRole('button', { name: 'Rotate now' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Rotate' }).click()
    await sees(root.getByText('AKIASECONDSECOND0002'))
    await sees(root.locator('dt', { hasText: 'Made' }).locator('..').locator('time'))

    await page.getByRole('button', { name: 'New role', exact: true }).click()
    await page.getByLabel('Name', { exact: true }).fill('dev')
    await page.getByLabel('Kind of credentials').fill('assumed_role')
    await page.getByLabel('Roles to assume').fill('arn:aws:iam::123456789012:role/dev')
    await page.getByRole('button', { name: 'Save role', exact: true }).click()
    await page.getByRole('button', { name: 'Issue credentials' }).click()
    await sees(page.getByText('ASIATEMPORARY0000001'))
    await page.getByRole('button', { name: 'Reveal Secret key' }).click()
    await sees(page.getByText('a-secret-that-is-issued'))
    await page.getByRole('button', { name: 'Put it away' }).click()
    assert.equal((await page.content()).includes('a-secret-that-is-issued'), false)
    await page.getByRole('button', { name: 'Delete dev' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete role' }).click()
    await sees(page.getByText('There is none yet.'))
  })
})

test('plugins: one is registered by its checksum, pinned, reloaded and removed', { skip: !built && 'the plugins are not built' }, async () => {
  await use.api('GET', 'auth/jwt/config').catch(() => {}) // its process runs
  await use.as(use.rootToken, 'plugins', async (page) => {
    const row = (id) => page.locator(`[data-row="${id}"]`)
    const { version } = (await use.api('GET', 'sys/plugins/catalog')).data.detailed.find((p) => p.name === 'jwt')
    const jwt = row(`auth/jwt@${version}`)
    await sees(jwt.getByText('comes with Coffer'))
    await sees(jwt.getByRole('link', { name: 'jwt/' }))
    await sees(jwt.getByText('1 process'))

    await page.getByRole('button', { name: 'Register a plugin' }).click()
    await page.getByLabel('Name', { exact: true }).fill('mine')
    await page.getByLabel('Version', { exact: true }).fill('v2.0.0')
    await page.getByLabel('Take the SHA-256').setInputFiles({ name: 'mine-2', mimeType: 'application/octet-stream', buffer: Buffer.from('a program') })
    await page.waitForFunction(() => [...document.querySelectorAll('#plugin input')].some((i) => /^[0-9a-f]{64}$/.test(i.value)))
    assert.equal(await page.getByLabel('Name of the program').inputValue(), 'mine-2')
    await page.getByLabel('Arguments, one in each line').fill('-v\n-name=a b')
    await page.getByLabel('Environment, a NAME=value in each line').fill('KEY=not-to-be-shown')
    await page.getByRole('button', { name: 'Show API call' }).click()
    await sees(page.locator('#plugin', { hasText: 'coffer write sys/plugins/catalog/secret/mine' }))
    await page.getByRole('button', { name: 'Register plugin', exact: true }).click()
    const mine = row('secret/mine@v2.0.0')
    await sees(mine.getByText('mine-2 -v -name=a b'))
    assert.equal((await page.content()).includes('not-to-be-shown'), false)

    const choose = async (what) => {
      await mine.getByRole('button', { name: 'More for mine v2.0.0' }).click()
      await mine.getByRole('button', { name: what, exact: true }).click()
    }
    await choose('Pin this version')
    await sees(mine.getByText('pinned'))
    await choose('Reload')
    await sees(page.locator('.notice', { hasText: 'mine starts again' }))
    await choose('Remove the pin')
    await mine.getByText('pinned').waitFor({ state: 'detached' })
    await choose('Remove…')
    await page.getByRole('dialog').getByRole('button', { name: 'Remove plugin' }).click()
    await mine.waitFor({ state: 'detached' })
  })
  await use.policy('sees-plugins', 'path "sys/plugins/catalog" { capabilities = ["read", "sudo"] }')
  await use.as(await use.tokenOf({ policies: ['sees-plugins'] }), 'plugins', async (page) => {
    await sees(page.getByText('comes with Coffer'))
    assert.equal(await page.getByRole('button', { name: /^(Register|More for)/ }).count(), 0)
  })
})

test('password policies: one is written, tried out, changed and deleted', () =>
  use.as(use.rootToken, 'policies/password', async (page) => {
    await page.getByRole('button', { name: 'New password policy' }).click()
    await page.getByLabel('Name', { exact: true }).fill('digits')
    const text = page.getByLabel('Policy', { exact: true })
    await text.fill('length = 3\nrule "charset" {\n  charset = "01"\n}')
    await page.getByRole('button', { name: 'Save password policy' }).click()
    await sees(page.locator('#main, main').getByRole('alert'))
    await text.fill('length = 12\nrule "charset" {\n  charset = "01"\n}')
    await page.getByRole('button', { name: 'Save password policy' }).click()
    await page.getByRole('button', { name: 'Generate a password' }).click()
    await page.getByRole('button', { name: 'Reveal Password' }).click()
    await sees(page.getByText(/^[01]{12}$/))
    await page.getByRole('button', { name: 'Change digits' }).click()
    await page.locator('tr.below').getByLabel('Policy', { exact: true }).fill('length = 14\nrule "charset" {\n  charset = "01"\n}')
    await page.getByRole('button', { name: 'Save password policy' }).click()
    await page.locator('tr.below').waitFor({ state: 'detached' })
    await page.getByRole('button', { name: 'Open digits' }).click()
    await page.getByRole('button', { name: 'Generate a password' }).click()
    await page.getByRole('button', { name: 'Reveal Password' }).click()
    await sees(page.getByText(/^[01]{14}$/))
    await page.getByRole('button', { name: 'Delete digits' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete password policy' }).click()
    await sees(page.getByText('There is none yet.'))
  }))

test('identity tokens: the issuer is set, and the keys are replaced', () =>
  use.as(use.rootToken, 'issuer', async (page) => {
    await page.getByLabel('Address by which clouds reach this server').fill('https://coffer.example.com')
    await page.getByRole('button', { name: 'Save configuration' }).click()
    await sees(page.getByText('https://coffer.example.com/v1/identity/oidc/plugins'))
    await page.getByRole('button', { name: 'Replace all…' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Replace the keys' }).click()
    await sees(page.locator('.notice', { hasText: 'The keys are replaced' }))
  }))

test('OpenID Connect: set up here, signed in by a code and by a posted form, and what was typed outlives a sign-in', { skip: !built && 'the plugin is not built' }, async () => {
  const back = `${use.server.url}/ui/vault/auth/oidc/oidc/callback`
  const client = { id: 'coffer', secret: 'of-the-client-at-the-provider-0000', redirects: [back, back.replace('ui/vault', 'v1')] }
  const provider = spawn('node', ['oidc/provider.js'], { cwd: import.meta.dirname, env: { ...process.env, COFFER_CLIENT: JSON.stringify(client), NODE_NO_WARNINGS: '1' }, stdio: ['pipe', 'pipe', 'inherit'] })
  try {
    const issuer = String((await once(provider.stdout, 'data'))[0]).trim()
    await use.api('POST', 'sys/auth/oidc', { type: 'oidc' })
    await use.policy('writes-team', 'path "team/*" { capabilities = ["create", "read", "update", "list"] }')
    await use.api('POST', 'sys/mounts/team', { type: 'kv', options: { version: '2' } })
    await use.api('POST', 'team/data/app', { data: { key: 'stored' } })
    const configure = (fields) =>
      at('oidc', async (page) => {
        for (const [label, value] of Object.entries(fields)) await page.getByLabel(label, { exact: true }).fill(value)
        if (!fields['Our client id']) await page.getByLabel('How the provider answers').selectOption('form_post')
        await page.getByLabel('Its secret').fill(client.secret)
        await page.getByRole('button', { name: 'Save configuration' }).click()
        await sees(page.getByText('Configuration saved'))
        assert.equal((await page.content()).includes(client.secret), false)
      })
    await configure({ 'Issuer that publishes its keys': issuer, 'Our client id': client.id, 'Role of logins that name none': 'dev' })
    await at('oidc', async (page) => {
      await page.getByRole('button', { name: 'New role', exact: true }).click()
      await page.getByLabel('Name', { exact: true }).fill('dev')
      await page.getByLabel('Claim that names the user').fill('sub')
      await page.getByLabel('Where browsers may come back to').fill(back)
      await page.getByLabel('Policies', { exact: true }).fill('writes-team')
      await page.getByRole('button', { name: 'Save role', exact: true }).click()
      await sees(page.getByRole('table', { name: 'Roles' }).getByText('dev'))
    })

    async function start(page) {
      await page.getByRole('button', { name: 'OIDC', exact: true }).click()
      await page.getByRole('button', { name: 'Sign in with OIDC', exact: true }).click()
    }
    async function signIn(page) {
      await page.waitForURL(`${issuer}/interaction/*`)
      await page.getByLabel('Name').fill('ada')
      await page.getByLabel('Password').fill('correct horse')
      await page.getByRole('button', { name: 'Log in', exact: true }).click()
    }
    for (const form of [false, true]) {
      if (form) await configure({})
      const { page, context, faults } = await openPage(use.browser, use.server)
      try {
        await page.goto(`${use.server.url}/ui/#/secrets/team%2F/edit/app`)
        await start(page)
        await signIn(page)
        const value = page.getByLabel('Value of key')
        await sees(value)
        assert.doesNotMatch(page.url(), /state=|code=/)
        await value.fill('typed with care')
        await page.evaluate(() => fetch('/v1/auth/token/revoke-self', { method: 'POST', headers: { 'X-Vault-Token': sessionStorage['coffer.token'] } }))
        await page.getByRole('button', { name: 'Save' }).click()
        await sees(page.getByText('Your token is no longer valid'))
        const other = context.waitForEvent('page')
        await start(page) // the provider knows the user still
        await other
        await sees(page.getByText('What you typed here before is back.'))
        assert.equal(await value.inputValue(), 'typed with care')
        const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]))
        assert.equal(stored.includes('typed'), false)
        assert.deepEqual(faults.filter((f) => !f.startsWith(`request to ${issuer}/`)), [])
      } finally {
        await context.close()
      }
    }
  } finally {
    provider.stdin.end()
  }
})
