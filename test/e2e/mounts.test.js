// The pages of engines and auth methods: what is in a mount is made, listed, changed and deleted. Plugins are there if they are built.

import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { createServer } from 'node:http'
import { after, before, test } from 'node:test'
import { startUse } from './server.js'

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
