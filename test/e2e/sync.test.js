// Secret sync to a destination that fails and recovers, and that others change. Each test has a browser context of its own.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { startGitLab, startUse } from './server.js'

let lab, use
const sees = (locator) => locator.first().waitFor()
const PATH = 'sys/sync/destinations/gitlab/web'
const lane = (page, name) => page.locator(`[data-lane=${name}]`)

before(async () => {
  lab = await startGitLab()
  use = await startUse({ more: lab.configuration })
  await use.api('POST', 'sys/mounts/team', { type: 'kv', options: { version: '2' } })
  for (const name of ['api', 'db', 'taken']) await use.api('PUT', `team/data/${name}`, { data: { v: `${name}-1` } })
  await use.api('PUT', PATH, { access_token: 'glpat-of-a-test', project_id: '7', masked: false, secret_name_template: '{{ .SecretPath | uppercase }}_{{ .SecretKey | uppercase }}' })
})

after(async () => {
  await use?.stop()
  lab?.stop()
})

test('what would be done is seen as a plan before it is done', async () => {
  lab.held.set('TAKEN_V', { key: 'TAKEN_V', value: 'of another client', variable_type: 'env_var', environment_scope: '*', description: null })
  await use.as(use.rootToken, 'sync/gitlab/web', async (page) => {
    await page.getByRole('button', { name: 'Associate a secret' }).click()
    await page.getByLabel('Mount', { exact: true }).fill('team')
    const plan = page.locator('#plan')
    await page.getByLabel('Secret', { exact: true }).fill('api')
    await page.getByRole('button', { name: 'Show the plan' }).click()
    await sees(plan.getByText('+ 1 to create'))
    await sees(plan.locator('tr', { hasText: 'API_V' }).getByText('+ create'))
    assert.equal(lab.held.has('API_V'), false, 'nothing is done')
    await page.getByLabel('Secret', { exact: true }).fill('taken')
    await page.getByRole('button', { name: 'Show the plan' }).click()
    await sees(plan.getByText('! 1 not possible'))
    await page.getByLabel('Secret', { exact: true }).fill('api')
    await page.getByRole('button', { name: 'Associate', exact: true }).click()
    await sees(lane(page, 'synced').getByText('team/api'))
    assert.ok(lab.held.has('API_V'))
  })
})

test('a destination that fails is tried again, and recovers; the drawer has the history', async () => {
  lab.failing = true
  await use.api('POST', `${PATH}/associations/set`, { mount: 'team', secret_name: 'db' })
  await use.as(use.rootToken, 'sync/gitlab/web', async (page) => {
    await sees(lane(page, 'retrying').getByText('team/db'))
    await sees(lane(page, 'retrying').getByText(/next try in \d+ s/))
    lab.failing = false
    await lane(page, 'retrying').getByRole('button').first().click()
    const drawer = page.locator('.drawer')
    await sees(drawer.getByText('Last attempts'))
    await drawer.getByRole('button', { name: 'Retry now' }).click()
    await sees(lane(page, 'synced').getByText('team/db'))
    await page.keyboard.press('Escape')
    await lane(page, 'synced').getByRole('button', { name: /team\/db/ }).click()
    await sees(drawer.locator('li', { hasText: 'SYNCED' }))
    assert.ok((await drawer.locator('li').count()) >= 2, 'the attempts that failed are there, too')
  })
  assert.ok(lab.held.has('DB_V'))
})

test('a name of another client is a conflict until it is adopted', async () => {
  await use.api('POST', `${PATH}/associations/set`, { mount: 'team', secret_name: 'taken' })
  await use.as(use.rootToken, 'sync/gitlab/web', async (page) => {
    await sees(lane(page, 'conflict').getByText('team/taken'))
    assert.equal(lab.held.get('TAKEN_V').value, 'of another client')
    await lane(page, 'conflict').getByRole('button').click()
    await page.locator('.drawer').getByRole('button', { name: 'Adopt…' }).click()
    await page.getByRole('button', { name: 'Adopt and overwrite' }).click()
    await sees(lane(page, 'synced').getByText('team/taken'))
  })
  assert.match(lab.held.get('TAKEN_V').value, /taken-1/)
})

test('what another client has changed is seen after a check', async () => {
  lab.held.get('API_V').value = 'changed by hand'
  await use.as(use.rootToken, 'sync/gitlab/web', async (page) => {
    await page.getByRole('button', { name: 'Check for drift' }).click()
    await sees(page.locator('.notice', { hasText: 'Other clients changed 1 of 3 names' }))
    await lane(page, 'synced').getByRole('button', { name: /changed by others/ }).click()
    await sees(page.locator('.drawer').getByText('changed by another client'))
    await page.keyboard.press('Escape')
    await page.goto(`${use.server.url}/ui/#/sync`)
    await sees(page.locator('[data-destination="gitlab/web"]').getByText('1 change of others'))
  })
})
