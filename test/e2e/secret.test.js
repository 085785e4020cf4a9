// A secret and its neighbours: who can read it, who wrote it, and what differs between folders. Each test has a context of its own.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { startUse } from './server.js'

let use
const sees = (locator) => locator.first().waitFor()

before(async () => {
  use = await startUse()
  await use.api('POST', 'sys/mounts/team', { type: 'kv', options: { version: '2' } })
  await use.api('PUT', 'team/data/app/db', { data: { password: 'one' } })
  await use.api('PUT', 'team/data/app/db', { data: { password: 'two' } })
  await use.policy('db-read', 'path "team/data/app/*" { capabilities = ["read"] }')
  await use.policy('db-write', 'path "team/data/app/db" { capabilities = ["create", "update", "delete"] } path "team/metadata/app/db" { capabilities = ["read"] }')
  await use.policy('no-db', 'path "team/data/app/db" { capabilities = ["deny"] }')
  await use.policy('elsewhere', 'path "other/*" { capabilities = ["read"] }')
  const { id } = (await use.api('POST', 'identity/entity', { name: 'Ana', policies: ['db-read'] })).data
  await use.api('POST', 'identity/group', { name: 'writers', policies: ['db-write'], member_entity_ids: [id] })
})

after(() => use?.stop())

const row = (page, name) => page.locator(`[data-row="${name}"]`)
const tags = async (page, name) => (await row(page, name).locator('td').allInnerTexts()).slice(1, 6).map((t) => t.trim() === 'may')

test('who can read a secret is seen, and who carries the policies', async () => {
  await use.as(use.rootToken, 'secrets/team%2F/show/app/db?tab=access', async (page) => {
    await sees(row(page, 'db-read'))
    assert.deepEqual(await tags(page, 'db-read'), [true, false, false, false, false])
    assert.deepEqual(await tags(page, 'db-write'), [false, true, true, true, false])
    for (const other of ['no-db', 'elsewhere', 'default']) assert.equal(await row(page, other).count(), 0)
    await page.getByRole('button', { name: 'Find who carries them' }).click()
    await sees(row(page, 'db-read').getByRole('link', { name: 'Ana' }))
    await sees(row(page, 'db-write').getByText('writers (group)'))

    const tried = page.locator('#tried')
    await page.getByLabel('Policies of a token').fill('db-read, db-write')
    await page.getByRole('button', { name: 'Try', exact: true }).click()
    await sees(tried.getByText('may: Write'))
    await sees(tried.getByText('may not: Read')) // the exact path of db-write counts, not the wider one of db-read
    await page.getByLabel('Policies of a token').fill('db-read, no-db')
    await page.getByRole('button', { name: 'Try', exact: true }).click()
    await sees(tried.getByText('is denied something here'))
    await sees(tried.getByText('may not: Read'))
  })
})

test('what a token may not see of it is said, and who may not ask is not offered it', async () => {
  await use.policy('looks', `path "sys/policies/acl" { capabilities = ["list"] } path "sys/policies/acl/db-read" { capabilities = ["read"] }
    path "sys/capabilities" { capabilities = ["update"] } path "team/*" { capabilities = ["read", "list"] }`)
  await use.as(await use.tokenOf({ policies: ['looks'] }), 'secrets/team%2F/show/app/db', async (page) => {
    await page.getByRole('link', { name: 'Access', exact: true }).click()
    await sees(row(page, 'db-read'))
    assert.equal(await row(page, 'db-write').count(), 0)
    await sees(page.locator('#unseen', { hasText: /your token may not read \d of the policies/ }))
    await page.getByRole('button', { name: 'Find who carries them' }).click()
    await sees(page.locator('#unseen', { hasText: 'your token may not list groups; your token may not list entities' }))
    await page.getByLabel('Policies of a token').fill('db-write')
    await page.getByRole('button', { name: 'Try', exact: true }).click()
    await sees(page.getByText('Your token may not try all of these policies.'))
  })
  await use.as(await use.tokenOf({ policies: ['db-read'] }), 'secrets/team%2F/show/app/db', async (page) => {
    await sees(page.getByText('Version 2').first())
    assert.equal(await page.getByRole('link', { name: 'Access', exact: true }).count(), 0)
  })
})

test('of many policies a hundred are looked through at a time', async () => {
  await Promise.all(Array.from({ length: 110 }, (_, i) => use.policy(`p${String(i).padStart(3, '0')}`, 'path "other/x" { capabilities = ["read"] }')))
  await use.as(use.rootToken, 'secrets/team%2F/show/app/db?tab=access', async (page) => {
    await page.getByRole('button', { name: 'Look through 100' }).click()
    await sees(row(page, 'db-write'))
    await page.getByRole('button', { name: /^Look through the next \d+$/ }).click()
    await page.getByRole('button', { name: /^Look through/ }).waitFor({ state: 'detached' })
    await sees(row(page, 'root'))
  })
})

test('who wrote a version is found in the audit log', async () => {
  await use.api('POST', 'sys/audit/file', { type: 'file', options: { file_path: 'secret.log' } })
  const eve = await use.tokenOf({ policies: ['db-write'], display_name: 'eve' })
  await use.api('PUT', 'team/data/app/db', { data: { password: 'three' } }, eve)
  await use.as(use.rootToken, 'secrets/team%2F/show/app/db?tab=versions', async (page) => {
    await page.getByRole('link', { name: 'Who wrote it: version 3' }).click()
    await sees(page.locator('table[aria-label=Records]').getByText('token-eve'))
    assert.equal(await page.getByLabel('Path begins with').inputValue(), 'team/data/app/db')
  })
  await use.policy('sees-versions', 'path "team/*" { capabilities = ["read", "list"] }')
  await use.as(await use.tokenOf({ policies: ['sees-versions'] }), 'secrets/team%2F/show/app/db?tab=versions', async (page) => {
    await sees(page.getByRole('link', { name: 'Version 3' }))
    assert.equal(await page.getByText('Who wrote it').count(), 0)
  })
})

test('environments are seen side by side: keys that are missing or differ, without values', async () => {
  const put = (path, data) => use.api('PUT', `team/data/env/${path}`, { data })
  await put('dev/db', { host: 'a-host', password: 'a-password-of-dev' })
  await put('prod/db', { host: 'a-host', password: 'a-password-of-prod', replica: 'x' })
  await put('staging/db', { host: 'a-host', password: 'a-password-of-dev' })
  await put('prod/mail', { user: 'u' })
  await use.policy('not-prod', 'path "team/metadata/*" { capabilities = ["list"] } path "team/data/env/dev/*" { capabilities = ["read"] } path "team/data/env/staging/*" { capabilities = ["read"] }')
  const rows = async (page) => {
    await page.getByRole('button', { name: 'Side by side' }).click()
    await sees(page.getByRole('table', { name: 'Folders side by side' }).locator('code'))
    return page.locator('table tbody tr').evaluateAll((all) => all.map((tr) => [...tr.cells].map((td) => td.innerText.trim()).join(' ')))
  }
  await use.as(use.rootToken, 'secrets/team%2F/list/env/', async (page) => {
    assert.deepEqual(await rows(page), ['db host A A A', 'db password A B A', 'db replica none A none', 'mail user none A none'])
    assert.equal(/a-password|a-host/.test(await page.content()), false)
  })
  await use.as(await use.tokenOf({ policies: ['not-prod'] }), 'secrets/team%2F/list/env/', async (page) => {
    assert.deepEqual((await rows(page)).slice(0, 2), ['db host A may not be read A', 'db password A may not be read A'])
  })
})
