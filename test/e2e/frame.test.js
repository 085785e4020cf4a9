// The frame around the pages, as several people use it: what is offered, what is kept, what is found, and that it can be read by
// all. Each test has a browser context of its own.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import axe from 'axe-core'
import { fill, places } from './places.js'
import { openPage, settled, startBrowser, startServer } from './server.js'

let server, browser, rootToken

const sees = (locator) => locator.first().waitFor()

async function api(method, path, body, token = rootToken, { url } = server) {
  const response = await fetch(`${url}/v1/${path}`, { method, headers: { 'X-Vault-Token': token }, body: body && JSON.stringify(body) })
  const text = await response.text()
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`)
  return text ? JSON.parse(text) : null
}

const write = (path, data) => api('PUT', `team/data/${path}`, { data })
const policy = (name, text) => api('PUT', `sys/policies/acl/${name}`, { policy: text })
const tokenOf = async (body) => (await api('POST', 'auth/token/create', body)).auth.client_token

before(async () => {
  server = await startServer()
  const { keys_base64, root_token } = await api('PUT', 'sys/init', { secret_shares: 1, secret_threshold: 1 }, '')
  await api('PUT', 'sys/unseal', { key: keys_base64[0] }, '')
  rootToken = root_token
  while ((await fetch(`${server.url}/v1/sys/health`)).status !== 200) await sleep(50)
  await fill(api)
  browser = await startBrowser()
})

after(async () => {
  await browser?.close()
  await server?.stop()
})

/** Opens a place as the holder of a token, and looks afterwards whether anything happened that must not. */
async function as(token, place, work, options) {
  const { page, context, faults } = await openPage(browser, server, options)
  try {
    await page.goto(`${server.url}/ui/#/${place}`)
    await enter(page, token)
    await work(page)
    assert.deepEqual(faults, [])
  } finally {
    await context.close()
  }
}

async function enter(page, token) {
  await page.getByLabel('Token', { exact: true }).fill(token)
  await page.getByRole('button', { name: 'Sign in', exact: true }).click()
}

const pageLink = (page, name) => page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name, exact: true })
const protectedPages = ['Policies', 'Engines', 'Auth methods', 'Audit', 'Cluster']
/** What the token may do is known. */
const known = (page) => page.getByRole('status', { name: 'Loading' }).waitFor({ state: 'detached' })

test('a token is offered what it may do, and no more', async () => {
  await as(await tokenOf({ policies: ['reader'] }), 'secrets/team%2F/show/app/stripe', async (page) => {
    await sees(page.getByRole('button', { name: 'Reveal key' }))
    await sees(page.getByRole('button', { name: 'Share once' }))
    for (const [role, name] of [['link', 'New version'], ['link', 'Versions'], ['button', 'More']]) assert.equal(await page.getByRole(role, { name, exact: true }).count(), 0, name)
    await known(page)
    for (const name of protectedPages) assert.equal(await pageLink(page, name).count(), 0, name)
    await page.goto(`${server.url}/ui/#/secrets/team%2F/list`)
    await sees(page.getByRole('link', { name: 'app/' }))
    await known(page)
    assert.equal(await page.getByRole('link', { name: 'New secret' }).count(), 0)
  })
  await as(rootToken, 'secrets/team%2F/list', async (page) => {
    await sees(page.getByRole('link', { name: 'New secret' }))
    for (const name of protectedPages) await sees(pageLink(page, name))
  })
})

test('what was typed is back after another page, after the token has expired, and after signing in again', async () => {
  const token = () => tokenOf({ policies: ['writer'], ttl: '1h', display_name: 'ana' })
  await as(await token(), 'secrets/team%2F/edit/app/stripe', async (page) => {
    await page.getByLabel('Value of key').fill('typed with care')
    await page.clock.install()
    await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Tokens' }).click()
    await sees(page.getByRole('heading', { name: 'Tokens' }))
    await page.goBack()
    await sees(page.getByText('What you typed here before is back.'))
    assert.equal(await page.getByLabel('Value of key').inputValue(), 'typed with care')

    await page.clock.fastForward('56:00')
    await sees(page.locator('#expiring', { hasText: /expires in [34] min/ }))
    await page.clock.fastForward('05:00')
    await sees(page.getByText('Your token has expired. Sign in again'))
    assert.equal(await page.getByLabel('Value of key').count(), 0)
    const stored = await page.evaluate(() => JSON.stringify([Object.values(localStorage), Object.values(sessionStorage), document.cookie, document.title, location.href, history.state]))
    assert.equal(stored.includes('typed'), false, 'it is in memory alone')
    await enter(page, await token())
    await sees(page.getByText('What you typed here before is back.'))
    assert.equal(await page.getByLabel('Value of key').inputValue(), 'typed with care')
    await page.getByRole('button', { name: 'Discard it' }).click()
    await page.waitForFunction(() => document.querySelector('[aria-label="Value of key"]')?.value === 'two')

    // Nobody else gets it, and signing out forgets it.
    await page.getByLabel('Value of key').fill('typed again')
    await page.getByLabel('Your session').click()
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.evaluate(() => (location.hash = '#/tokens'))
    await enter(page, await tokenOf({ policies: ['reader'] }))
    await sees(page.getByText('Show API calls of this page'))
    assert.equal((await page.content()).includes('stripe'), false, 'nothing is left of what the one before looked at')
    await page.getByLabel('Your session').click()
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.evaluate(() => (location.hash = '#/secrets/team%2F/edit/app/stripe'))
    await enter(page, rootToken)
    await sees(page.getByLabel('Value of key'))
    assert.equal(await page.getByLabel('Value of key').inputValue(), 'two')
  })
})

test('a token that is about to expire is renewed', async () => {
  await as(await tokenOf({ policies: ['writer'], ttl: '4m', period: '' }), 'secrets', async (page) => {
    await page.getByLabel('Your session').click()
    await sees(page.getByText(/^in [34] min/))
    const renewed = page.waitForResponse((r) => r.url().endsWith('/auth/token/renew-self'))
    await page.getByRole('button', { name: 'Renew' }).first().click()
    assert.equal((await renewed).status(), 200)
    await sees(page.locator('.notice', { hasText: 'Token renewed' }))
  })
})

test('links that lead nowhere say so', async () => {
  await as(rootToken, 'nonsense/x', async (page) => {
    for (const place of ['nonsense/x', 'policies/reader', 'policies/edit', 'engines/nonsense', 'secrets/team%2F/shove/app', 'secrets/team%2F/show/app/', 'tokens/one', 'secrets/team%2F/show/app/stripe?tab=none']) {
      await page.goto(`${server.url}/ui/#/${place}`)
      await sees(page.locator('#not-found'))
      assert.equal(await page.getByRole('button', { name: 'Delete' }).count(), 0)
    }
    await page.goto(`${server.url}/ui/#/policies/edit/none`)
    await sees(page.getByRole('alert'))
    assert.equal(await page.getByRole('button', { name: 'Delete' }).count(), 0)
  })
})

test('a node that tries to join says so, and makes a cluster only when asked to', async () => {
  const joining = await startServer({ retryJoin: 'http://127.0.0.1:1' })
  const { page, context, faults } = await openPage(browser, joining)
  try {
    await page.goto(`${joining.url}/ui/`)
    await sees(page.getByRole('heading', { name: 'This node joins a cluster' }))
    await sees(page.locator('#joining', { hasText: 'http://127.0.0.1:1' }))
    await sees(page.getByText('The last attempt failed:'))
    await page.getByRole('button', { name: 'Make a new cluster instead' }).click()
    await sees(page.getByRole('heading', { name: 'Initialize this cluster' }))
    assert.deepEqual(faults, [])
  } finally {
    await context.close()
    await joining.stop()
  }
})

test('Control+K goes to pages, mounts, paths and policies', async () => {
  await as(rootToken, 'secrets', async (page) => {
    await sees(page.getByRole('heading', { name: 'Secrets' }))
    const search = async (text) => {
      await page.keyboard.press('Control+k')
      await page.getByRole('combobox', { name: 'Go to a page' }).fill(text)
    }
    const option = (name) => page.getByRole('option', { name })
    await search('clus')
    await sees(option('Cluster'))
    await page.keyboard.press('Enter')
    await sees(page.getByRole('heading', { name: 'vault-street' }))
    await search('reader')
    await sees(option('reader'))
    await page.keyboard.press('Enter')
    await sees(page.getByRole('heading', { name: 'reader' }))
    await search('team/app/str')
    await sees(option('team/app/stripe'))
    await page.keyboard.press('Enter')
    await sees(page.getByRole('heading', { name: 'stripe' }))
    await search('ana-of')
    await sees(option('ana-of-payments'))
    await page.keyboard.press('Enter')
    await sees(page.getByRole('heading', { name: 'ana-of-payments' }))
    await search('hook')
    await sees(option('hook'))
    await page.keyboard.press('Escape')
    assert.equal(await page.getByRole('combobox', { name: 'Go to a page' }).count(), 0)
    await page.goto(`${server.url}/ui/#/secrets/team%2F/list/many/`)
    await sees(page.getByText('12 entries'))
    await page.keyboard.press('/')
    await page.keyboard.type('s1')
    await sees(page.getByText('4 of 12 entries'))
  })
})

test('titles name what is shown, and never a value', async () => {
  await as(rootToken, 'secrets/team%2F/show/app/stripe', async (page) => {
    await page.getByRole('button', { name: 'Reveal key' }).click()
    await sees(page.locator('[data-value=key]', { hasText: 'two' }))
    assert.equal(await page.title(), 'stripe – team/app · Coffer')
    await page.goto(`${server.url}/ui/#/policies/edit/reader`)
    await page.waitForFunction(() => document.title === 'reader – Policies · Coffer')
  })
})

test('values leave the page when they are hidden, and the clipboard after a time that is said', async () => {
  await as(rootToken, 'secrets/team%2F/show/app/stripe', async (page) => {
    await page.clock.install()
    await page.getByRole('button', { name: 'Reveal all' }).click()
    await sees(page.locator('[data-value=key]', { hasText: 'two' }))
    await page.clock.runFor(61_000)
    await page.locator('[data-value=key]').waitFor({ state: 'detached' })
    await page.getByRole('button', { name: 'Copy key' }).click()
    await sees(page.locator('.notice', { hasText: 'the clipboard is cleared in 45 s' }))
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'two')
    await page.clock.runFor(46_000)
    await sees(page.locator('.notice', { hasText: 'The clipboard is cleared' }))
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), '')
  })
})

test('a secret is copied as a command and as configuration, and shared once', async () => {
  await as(rootToken, 'secrets/team%2F/show/app/stripe', async (page) => {
    const copied = async (name) => {
      await page.getByRole('button', { name: 'Copy as', exact: true }).click()
      await page.getByRole('button', { name, exact: true }).click()
      const next = async (before) => {
        for (const end = performance.now() + 30_000; ; await new Promise(requestAnimationFrame)) {
          const text = await navigator.clipboard.readText()
          if (text !== before || performance.now() > end) return text
        }
      }
      return (before = await page.evaluate(next, before))
    }
    let before = ''
    await page.evaluate(() => navigator.clipboard.writeText(''))
    assert.equal(await copied('CLI'), 'coffer kv get -mount=team app/stripe')
    assert.match(await copied('curl'), /^curl -H "X-Vault-Token: \$COFFER_TOKEN" "\$COFFER_ADDR"\/v1\/team\/data\/app\/stripe$/)
    assert.match(await copied('Terraform'), /data "vault_kv_secret_v2" "app_stripe"/)
    assert.match(await copied('ExternalSecret'), /key: "app\/stripe"/)
    assert.equal(await copied('dotenv (with values)'), 'key=two\nmode=live\n')
    const wrapping = page.waitForResponse((r) => r.url().endsWith('/team/data/app/stripe') && r.request().headers()['x-vault-wrap-ttl'])
    await page.getByRole('button', { name: 'Share once' }).click()
    assert.equal((await (await wrapping).text()).includes('two'), false, 'the value does not pass through the browser')
    await page.getByRole('button', { name: 'Reveal Wrapping token' }).click()
    const token = await page.locator('#shared code').last().innerText()
    assert.deepEqual((await api('POST', 'sys/wrapping/unwrap', undefined, token)).data.data, { key: 'two', mode: 'live' })
  })
})

test('pages and forms show their API calls, without secrets', async () => {
  await as(rootToken, 'secrets/team%2F/edit/app/stripe', async (page) => {
    await page.getByLabel('Value of key').fill('hunter2')
    await page.getByRole('button', { name: 'Show API call' }).click()
    const form = page.locator('form')
    await sees(form.getByText('/v1/team/data/app/stripe'))
    await sees(form.getByText(/coffer write team\/data\/app\/stripe/))
    assert.equal((await page.locator('main').innerText()).includes('hunter2'), false)
    await page.goto(`${server.url}/ui/#/policies/edit/reader`)
    await page.getByText('Show API calls of this page').click()
    await sees(page.getByText('coffer read sys/policies/acl/reader'))
    await page.goto(`${server.url}/ui/#/engines/new`)
    await page.getByLabel('Path', { exact: true }).fill("the team's")
    await page.locator('form').getByRole('button', { name: 'Show API call' }).click()
    await sees(page.locator('form').getByText(`coffer write 'sys/mounts/the team'\\''s'`))
  })
})

test('tables sort by their columns, and use the width', async () => {
  await as(rootToken, 'secrets/team%2F/list/many/', async (page) => {
    const names = () => page.locator('tbody a').allInnerTexts()
    await sees(page.getByRole('link', { name: 's12' }))
    assert.deepEqual((await names()).slice(0, 3), ['s1', 's2', 's3'], 'numbers in names are numbers')
    await page.getByRole('button', { name: 'Name' }).click()
    assert.deepEqual((await names()).slice(0, 2), ['s12', 's11'])
    assert.equal(await page.locator('th').first().getAttribute('aria-sort'), 'descending')
    assert.ok((await page.locator('table').boundingBox()).width > 1100)
  }, { viewport: { width: 1500, height: 900 } })
})

test('phones have a bar at the bottom that leads everywhere', async () => {
  await as(rootToken, 'secrets', async (page) => {
    await sees(page.getByRole('heading', { name: 'Secrets' }))
    const bar = await page.getByRole('navigation', { name: 'Main' }).boundingBox()
    assert.ok(bar.y + bar.height >= 739 && bar.height < 90, `the bar is at ${bar.y}`)
    assert.equal(await page.getByRole('link', { name: 'Tokens', exact: true }).isVisible(), false)
    await page.getByRole('button', { name: 'More', exact: true }).click()
    await page.getByRole('link', { name: 'Tokens', exact: true }).click()
    await sees(page.getByRole('heading', { name: 'Tokens' }))
    for (const link of await page.locator('nav[aria-label=Main] a:visible').all()) assert.ok((await link.boundingBox()).height >= 44)
  }, { viewport: { width: 360, height: 740 } })
})

test('the board of secret sync shows what needs an operator, and helps', async () => {
  await as(rootToken, 'sync', async (page) => {
    const card = page.locator('[data-destination="webhook/hook"]')
    await sees(card.getByText('Needs you 1'))
    await sees(card.getByText('0 of 1'))
    await card.getByRole('link').click()
    const you = page.locator('[data-lane=you]')
    await sees(you.getByText(/does not connect to addresses of this machine/))
    await sees(you.getByText(/next try in \d+ s/))
    await you.getByRole('button').click()
    const drawer = page.locator('.drawer')
    await sees(drawer.getByText('Last attempts'))
    const retried = page.waitForResponse((r) => r.url().endsWith('/associations/retry'))
    await drawer.getByRole('button', { name: 'Retry now' }).click()
    assert.ok((await retried).ok())
    await sees(page.locator('.notice', { hasText: 'It is tried again' }))
    await page.keyboard.press('Escape')
    assert.equal(await drawer.count(), 0)
    await page.goto(`${server.url}/ui/#/secrets/team%2F/show/app/stripe?tab=delivery`)
    await sees(page.locator('[data-row="webhook/hook"]').getByText('Needs you'))
  })
})

test('Home shows what needs attention, and what does not', async () => {
  await as(rootToken, 'home', async (page) => {
    await sees(page.getByRole('heading', { name: 'Needs attention' }))
    await sees(page.getByText('No device is enabled: nothing that happens'))
    await sees(page.getByText('1 node, all healthy'))
    await page.getByText('1 secret cannot be synced without you').waitFor()
    await page.getByRole('main').getByRole('link', { name: 'Secret sync' }).click()
    await sees(page.locator('[data-destination="webhook/hook"]'))
  })
  await as(await tokenOf({ policies: ['reader'] }), 'home', async (page) => {
    await sees(page.getByRole('heading', { name: 'Nothing needs attention' }))
  })
})

test('limits, namespaces and tools', async () => {
  await as(rootToken, 'limits', async (page) => {
    await page.getByRole('button', { name: 'New limit' }).click()
    await page.getByLabel('To', { exact: true }).fill('5000')
    await page.getByLabel('Name', { exact: true }).fill('wide')
    await page.getByRole('button', { name: 'Save', exact: true }).click()
    await sees(page.locator('[data-row="rate-limit/wide"]').getByText('5,000 in 1 second'))
    await page.getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await sees(page.getByText('Nothing is limited.'))

    await page.goto(`${server.url}/ui/#/namespaces`)
    await page.getByRole('button', { name: 'New namespace' }).click()
    await page.getByLabel('Path', { exact: true }).fill('payments')
    await page.getByRole('button', { name: 'Create', exact: true }).click()
    await sees(page.getByRole('button', { name: 'Namespace: root namespace' }))
    await page.getByRole('button', { name: 'Change payments' }).click()
    await page.getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('textbox').fill('payments')
    await page.getByRole('dialog').getByRole('button', { name: 'Delete for good' }).click()
    await sees(page.locator('.notice', { hasText: 'payments is being deleted' }))

    await page.goto(`${server.url}/ui/#/tools`)
    await page.getByLabel('Text', { exact: true }).fill('abc')
    await page.getByRole('button', { name: 'Hash', exact: true }).click()
    await sees(page.getByText('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad'))
    await page.getByLabel('Filter operations').fill('sys/mounts/{path}/tune')
    await page.getByRole('button', { name: 'Use GET sys/mounts/{path}/tune' }).click()
    await page.locator('#explore').getByLabel('Path').fill('sys/mounts/team/tune')
    await page.getByRole('button', { name: 'Send' }).click()
    await sees(page.locator('#answer', { hasText: '"max_lease_ttl"' }))
  })
})

for (const colorScheme of ['light', 'dark']) {
  test(`axe finds nothing on the pages, and they fit a phone, ${colorScheme}`, async () => {
    await as(rootToken, 'secrets', async (page) => {
      for (const place of places) {
        await page.goto(`${server.url}/ui/#/${place}`)
        await sees(page.locator('main h1'))
        await settled(page)
        await page.evaluate(axe.source)
        const found = await page.evaluate(() => window.axe.run({ resultTypes: ['violations'] }))
        const violations = found.violations.map((v) => `${v.id} (${v.impact}): ${v.nodes.map((n) => n.html.slice(0, 120)).join(' | ')}`)
        assert.deepEqual(violations, [], place)
        await page.setViewportSize({ width: 360, height: 740 })
        assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 360, `${place} is wider than a phone`)
        await page.setViewportSize({ width: 1200, height: 800 })
      }
    }, { colorScheme, reducedMotion: 'reduce' })
  })
}

test('each page asks for no more than it shows', async () => {
  await as(rootToken, 'secrets', async (page) => {
    await sees(page.getByRole('heading', { name: 'Secrets' }))
    await page.clock.install()
    for (const place of places) {
      const requests = []
      const count = (r) => r.url().includes('/v1/') && requests.push(new URL(r.url()).pathname)
      page.on('request', count)
      await page.goto(`${server.url}/ui/#/${place}`)
      await sees(page.locator('main h1'))
      for (let second = 0; second < 12; second++) {
        await page.clock.runFor(1000)
        await settled(page)
      }
      page.off('request', count)
      assert.ok(requests.length <= 15, `${place}: ${requests.length} requests in 12 seconds: ${requests.join(' ')}`)
      const asked = requests.filter((r) => r.endsWith('capabilities-self')).length
      assert.ok(asked <= 2, `${place} asks ${asked} times what the token may do`)
    }
  })
})
