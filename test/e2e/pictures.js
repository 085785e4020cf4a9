// Makes the pictures of README, docs/pictures/*.png, of real servers: node pictures.js

import { setTimeout as sleep } from 'node:timers/promises'
import { settled, startGitLab, startUse } from './server.js'

const to = (name) => new URL(`../../docs/pictures/${name}.png`, import.meta.url).pathname
const PATH = 'sys/sync/destinations/gitlab/shop'
const view = { viewport: { width: 1180, height: 720 }, reducedMotion: 'reduce' }

async function until(work) {
  while (!(await work())) await sleep(200)
}

const lab = await startGitLab()
const primary = await startUse({ more: lab.configuration })
const secondary = await startUse()
try {
  const { api, policy, rootToken } = primary
  await api('POST', 'sys/mounts/shop', { type: 'kv', options: { version: '2' } })
  const names = ['checkout/stripe', 'checkout/database', 'mail/smtp', 'search/token', 'web/session', 'web/cdn']
  for (const name of names) await api('PUT', `shop/data/${name}`, { data: { key: `not-a-secret-${name.length}` } })
  await policy('checkout', 'path "shop/data/checkout/*" { capabilities = ["read"] }')
  await policy('checkout-deploy', 'path "shop/data/checkout/*" { capabilities = ["create", "read", "update", "delete"] } path "shop/metadata/checkout/*" { capabilities = ["read"] }')
  await policy('auditors', 'path "shop/metadata/*" { capabilities = ["read", "list"] }')
  const { id } = (await api('POST', 'identity/entity', { name: 'ana', policies: ['checkout-deploy'] })).data
  await api('POST', 'identity/entity', { name: 'checkout-service', policies: ['checkout'] })
  await api('POST', 'identity/group', { name: 'revision', policies: ['auditors'], member_entity_ids: [id] })
  lab.held.set('WEB_CDN_KEY', { key: 'WEB_CDN_KEY', value: 'of another client', variable_type: 'env_var', environment_scope: '*', description: null })
  await api('PUT', PATH, { access_token: 'glpat-of-a-picture', project_id: '7', masked: false, secret_name_template: '{{ .SecretPath | replace "/" "_" | uppercase }}_{{ .SecretKey | uppercase }}' })
  const associate = (name) => api('POST', `${PATH}/associations/set`, { mount: 'shop', secret_name: name })
  const status = async (name) => Object.values((await api('GET', `${PATH}/associations`)).data.associated_secrets).find((l) => l.secret_name === name)?.sync_status
  for (const name of ['checkout/stripe', 'checkout/database', 'mail/smtp', 'web/cdn']) await associate(name)
  await until(async () => (await status('mail/smtp')) === 'SYNCED' && (await status('web/cdn')) === 'CONFLICT')
  lab.failing = true
  for (const name of ['search/token', 'web/session']) await associate(name)
  await until(async () => (await status('search/token')) !== 'PENDING')

  await api('POST', 'sys/replication/performance/primary/enable', {})
  const made = await api('POST', 'sys/replication/performance/primary/secondary-token', { id: 'frankfurt' })
  await secondary.api('POST', 'sys/replication/performance/secondary/enable', { token: made.wrap_info.token, primary_api_addr: primary.server.url })
  await until(async () => (await api('GET', 'sys/replication/performance/status')).data.secondaries[0]?.last_equal)

  const picture = (name, place, ready) =>
    primary.as(
      rootToken,
      place,
      async (page) => {
        await page.locator(ready).first().waitFor()
        await settled(page)
        if (name === 'access') {
          await page.getByRole('button', { name: 'Find who carries them' }).click()
          await page.getByRole('link', { name: 'checkout-service' }).waitFor()
        }
        await page.screenshot({ path: to(name) })
      },
      view,
    )
  await picture('sync', 'sync/gitlab/shop', '[data-lane=retrying] button')
  await picture('replication', 'overview/replication', '#lag canvas')
  await picture('access', 'secrets/shop%2F/show/checkout/stripe?tab=access', '[data-row=checkout]')
} finally {
  await Promise.all([primary.stop(), secondary.stop()])
  lab.stop()
}
