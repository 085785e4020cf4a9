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

test('a destination is made from what the server says of its type, changed, and deleted with what stays there named', async () => {
  await use.as(use.rootToken, 'sync', async (page) => {
    await page.getByRole('link', { name: 'New destination' }).click()
    await sees(page.getByRole('heading', { name: 'New destination' }))
    const type = page.getByLabel('Type', { exact: true })
    const fieldOf = { 'cloud1-sm': 'recovery_window_in_days', 'cloud1-ssm': 'tier', 'cloud2-kv': 'key_vault_uri', 'cloud3-sm': 'credentials', gitlab: 'environment_scope', kubernetes: 'api_server', repohost: 'repository_owner', webhook: 'signing_key', 'webhost-project': 'deploy_hook_url' }
    await sees(type)
    assert.deepEqual((await type.locator('option').evaluateAll((all) => all.map((o) => o.value))).sort(), Object.keys(fieldOf))
    for (const [one, field] of Object.entries(fieldOf)) {
      await type.selectOption(one)
      await sees(page.locator(`#destination [name=${field}]`))
    }

    // What the server rejects is said at the field.
    await type.selectOption('gitlab')
    await page.getByLabel('Name', { exact: true }).fill('made')
    const key = page.getByLabel('Access token', { exact: true })
    assert.equal(await key.getAttribute('type'), 'password')
    await key.fill('glpat-typed-here')
    await page.getByRole('button', { name: 'Show API call' }).click()
    await sees(page.locator('#destination', { hasText: 'sys/sync/destinations/gitlab/made' }))
    assert.equal((await page.locator('#destination').innerText()).includes('glpat-typed-here'), false)
    await page.getByRole('button', { name: 'Create destination' }).click()
    await sees(page.locator('#destination .wrong'))
    await page.getByLabel('Project ID', { exact: true }).fill('7')
    await page.getByLabel('Masked', { exact: true }).uncheck()
    await page.getByText('Names, tags, removal and networks').click()
    await page.getByLabel('Secret name template', { exact: true }).fill('MADE_{{ .SecretPath | uppercase }}_{{ .SecretKey | uppercase }}')
    await page.getByRole('button', { name: 'Create destination' }).click()
    await sees(page.getByRole('heading', { name: 'made', exact: true }))
    assert.equal((await page.content()).includes('glpat-typed-here'), false)
    await page.getByRole('button', { name: 'Verify' }).click()
    await sees(page.getByRole('table', { name: 'What was checked' }).getByText('ok', { exact: true }))

    // A change sends what was changed, and never a credential.
    await page.getByRole('button', { name: 'Edit', exact: true }).click()
    await page.getByLabel('Environment scope', { exact: true }).fill('production')
    assert.equal(await key.inputValue(), '')
    const sent = page.waitForRequest((r) => r.method() === 'PATCH')
    await page.getByRole('button', { name: 'Save destination' }).click()
    assert.deepEqual(JSON.parse((await sent).postData()), { environment_scope: 'production' })
    await sees(page.locator('.notice', { hasText: 'Destination made saved' }))

    await page.getByRole('button', { name: 'Associate a secret' }).click()
    await page.getByLabel('Mount', { exact: true }).fill('team')
    await page.getByLabel('Secret', { exact: true }).fill('api')
    await page.getByRole('button', { name: 'Associate', exact: true }).click()
    await sees(lane(page, 'synced').getByText('team/api'))
    await page.getByRole('button', { name: 'Delete', exact: true }).click()
    await page.getByLabel('Leave it there, and say what it is').check()
    await page.getByRole('button', { name: 'Delete…' }).click()
    await page.getByRole('dialog').getByRole('textbox').fill('made')
    await page.getByRole('button', { name: 'Delete destination' }).click()
    await sees(page.locator('#left-behind').getByText('MADE_API_V'))
    assert.ok(lab.held.has('MADE_API_V'))
    await page.goto(`${use.server.url}/ui/#/sync`)
    await sees(page.locator('[data-destination="gitlab/web"]'))
    assert.equal(await page.locator('[data-destination="gitlab/made"]').count(), 0)
  })
})

test('a destination goes when what was synced is removed; what a token may not do is not offered', async () => {
  const path = 'sys/sync/destinations/gitlab/short'
  await use.api('PUT', path, { access_token: 'glpat-of-a-test', project_id: '8', masked: false, secret_name_template: 'SHORT_{{ .SecretKey | uppercase }}' })
  await use.api('POST', `${path}/associations/set`, { mount: 'team', secret_name: 'db' })
  await use.policy('looks', `path "sys/sync/destinations" { capabilities = ["list"] } path "sys/sync/destinations/gitlab/*" { capabilities = ["read"] }`)
  await use.as(await use.tokenOf({ policies: ['looks'] }), 'sync', async (page) => {
    await sees(page.locator('[data-destination="gitlab/short"]'))
    assert.equal(await page.getByRole('link', { name: 'New destination' }).count(), 0)
    await page.getByRole('link', { name: 'short' }).click()
    await sees(lane(page, 'synced').getByText('team/db'))
    for (const name of ['Edit', 'Delete', 'Verify']) assert.equal(await page.getByRole('button', { name, exact: true }).count(), 0, name)
    await page.goto(`${use.server.url}/ui/#/sync/new`)
    await sees(page.getByText('Your token may not write a destination'))
  })
  await use.as(use.rootToken, 'sync/gitlab/short', async (page) => {
    await page.getByRole('button', { name: 'Delete', exact: true }).click()
    await page.getByLabel('Remove it there first').check()
    await page.getByRole('button', { name: 'Delete…' }).click()
    await page.getByRole('dialog').getByRole('textbox').fill('short')
    await page.getByRole('button', { name: 'Delete destination' }).click()
    await sees(page.locator('.notice', { hasText: /Destination short deleted|goes when all/ }))
    await page.goto(`${use.server.url}/ui/#/sync`)
    await sees(page.locator('[data-destination="gitlab/web"]'))
    await page.locator('[data-destination="gitlab/short"]').waitFor({ state: 'detached' })
  })
  assert.equal(lab.held.has('SHORT_V'), false)
})
