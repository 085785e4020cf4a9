// A tour with node-vault: from a server that nobody has initialized to what a team does with it.

import assert from 'node:assert/strict'
import nodeVault from 'node-vault'

const endpoint = process.env.VAULT_ADDR
const client = (token, namespace) => nodeVault({ endpoint, token, namespace })
let count = 0

/** One check: it prints its name, and ends the tour if it fails. */
async function check(name, run) {
  await run()
  console.log(`ok ${++count} node-vault: ${name}`)
}

/** Wants a refusal with this status, whose text matches. */
async function refused(promise, status, text = /./) {
  const error = await promise.then(
    () => assert.fail('it was allowed'),
    (e) => e,
  )
  assert.equal(error.response?.statusCode, status, error.message)
  assert.match(error.message, text)
}

const nobody = client()
let root
let keys
/** The client takes over each token that it creates or logs in to: what makes tokens is a client of its own. */
const maker = (namespace) => client(root.token, namespace)

await check('a new server is not initialized', async () => {
  assert.equal((await nobody.initialized()).initialized, false)
})
await check('initialize', async () => {
  const out = await nobody.init({ secret_shares: 3, secret_threshold: 2 })
  assert.equal(out.keys_base64.length, 3)
  keys = out.keys
  root = client(out.root_token)
})
await check('unseal', async () => {
  assert.equal((await nobody.status()).sealed, true)
  assert.equal((await nobody.unseal({ key: keys[0] })).progress, 1)
  assert.equal((await nobody.unseal({ key: keys[1] })).sealed, false)
  // It is the active node once it has elected itself.
  const deadline = Date.now() + 60_000
  while ((await nobody.leader()).is_self !== true || (await nobody.health()).standby !== false) {
    assert.ok(Date.now() < deadline, 'no leader')
    await new Promise((resolve) => setImmediate(resolve))
  }
})
await check('health and leader', async () => {
  const health = await nobody.health()
  assert.deepEqual([health.initialized, health.sealed, health.standby], [true, false, false])
})

await check('KV version 2', async () => {
  await root.mount({ mount_point: 'kv', type: 'kv', options: { version: '2' } })
  assert.ok((await root.mounts()).data['kv/'])
  await root.write('kv/data/app', { data: { user: 'shop', password: 'one' } })
  const second = await root.write('kv/data/app', { data: { user: 'shop', password: 'two' } })
  assert.equal(second.data.version, 2)
  assert.deepEqual((await root.read('kv/data/app')).data.data, { user: 'shop', password: 'two' })
  assert.equal((await root.read('kv/data/app?version=1')).data.data.password, 'one')
  assert.deepEqual((await root.list('kv/metadata')).data.keys, ['app'])
})
await check('check-and-set', async () => {
  await refused(root.write('kv/data/app', { data: {}, options: { cas: 1 } }), 400, /check-and-set/)
})
await check('patch, delete and destroy', async () => {
  await root.update('kv/data/app', { data: { password: 'three' } })
  assert.deepEqual((await root.read('kv/data/app')).data.data, { user: 'shop', password: 'three' })
  await root.destroySecretVersions({ mount_point: 'kv', path: 'app', versions: [1] })
  await refused(root.read('kv/data/app?version=1'), 404)
  await root.delete('kv/data/app')
  await refused(root.read('kv/data/app'), 404)
  await root.write('kv/undelete/app', { versions: [3] })
  assert.equal((await root.read('kv/data/app')).data.data.password, 'three')
})

await check('policies', async () => {
  await root.addPolicy({ name: 'reader', rules: 'path "kv/data/app" { capabilities = ["read"] }' })
  assert.ok((await root.policies()).data.policies.includes('reader'))
  assert.match((await root.getPolicy({ name: 'reader' })).data.rules, /kv\/data\/app/)
})
await check('tokens', async () => {
  const { auth } = await maker().tokenCreate({ policies: ['reader'], ttl: '1h', renewable: true })
  assert.deepEqual(auth.policies, ['default', 'reader'])
  const mine = client(auth.client_token)
  assert.equal((await mine.read('kv/data/app')).data.data.user, 'shop')
  await refused(mine.write('kv/data/app', { data: {} }), 403, /permission denied/)
  assert.equal((await mine.tokenLookupSelf()).data.accessor, auth.accessor)
  assert.equal((await root.tokenLookup({ token: auth.client_token })).data.display_name, 'token')
  assert.equal((await mine.tokenRenewSelf({ increment: 1800 })).auth.lease_duration, 1800)
  assert.equal((await root.tokenLookupAccessor({ accessor: auth.accessor })).data.accessor, auth.accessor)
  await root.tokenRevoke({ token: auth.client_token })
  await refused(mine.tokenLookupSelf(), 403)
})
await check('orphans and roles of tokens', async () => {
  assert.equal((await maker().tokenCreateOrphan({})).auth.orphan, true)
  await root.addTokenRole({ role_name: 'ci', allowed_policies: 'reader', period: 3600 })
  assert.deepEqual((await root.tokenRoles()).data.keys, ['ci'])
  const { auth } = await maker().tokenCreateRole({ role_name: 'ci', policies: ['reader'] })
  assert.equal(auth.lease_duration, 3600)
  await root.removeTokenRole({ role_name: 'ci' })
})

await check('userpass', async () => {
  await root.enableAuth({ mount_point: 'userpass', type: 'userpass' })
  assert.ok((await root.auths()).data['userpass/'])
  await root.write('auth/userpass/users/ann', { password: 'sesame', token_policies: 'reader' })
  const ann = client()
  const { auth } = await ann.userpassLogin({ username: 'ann', password: 'sesame' })
  assert.deepEqual(auth.policies, ['default', 'reader'])
  assert.equal((await ann.read('kv/data/app')).data.data.user, 'shop') // the client has kept the token
  await refused(client().userpassLogin({ username: 'ann', password: 'wrong' }), 400, /invalid username or password/)
})
await check('approle', async () => {
  await root.enableAuth({ mount_point: 'approle', type: 'approle' })
  await root.addApproleRole({ role_name: 'app', policies: 'reader', secret_id_num_uses: 1 })
  assert.deepEqual((await root.approleRoles()).data.keys, ['app'])
  const { role_id } = (await root.getApproleRoleId({ role_name: 'app' })).data
  const { secret_id } = (await root.getApproleRoleSecret({ role_name: 'app' })).data
  const app = client()
  await app.approleLogin({ role_id, secret_id })
  assert.equal((await app.read('kv/data/app')).data.data.user, 'shop')
  await refused(client().approleLogin({ role_id, secret_id }), 400, /invalid role or secret ID/)
})
await check('accessors of secret ids', async () => {
  const { secret_id, secret_id_accessor } = (await root.getApproleRoleSecret({ role_name: 'app' })).data
  assert.deepEqual((await root.approleSecretAccessors({ role_name: 'app' })).data.keys, [secret_id_accessor])
  assert.equal((await root.approleSecretLookup({ role_name: 'app', secret_id })).data.secret_id_num_uses, 1)
  await root.approleSecretAccessorDestroy({ role_name: 'app', secret_id_accessor })
  await root.deleteApproleRole({ role_name: 'app' })
})

await check('wrapping', async () => {
  const { wrap_info } = await root.read('kv/data/app', { headers: { 'X-Vault-Wrap-TTL': '60s' } })
  assert.equal(wrap_info.creation_path, 'kv/data/app')
  assert.equal((await client(wrap_info.token).unwrap()).data.data.user, 'shop')
  await refused(client(wrap_info.token).unwrap(), 400)
})
await check('namespaces', async () => {
  await root.write('sys/namespaces/team', {})
  const team = client(root.token, 'team')
  await team.mount({ mount_point: 'kv', type: 'kv' })
  await team.write('kv/a', { x: '1' })
  assert.deepEqual((await team.read('kv/a')).data, { x: '1' })
  assert.deepEqual((await root.read('team/kv/a')).data, { x: '1' })
  await team.addPolicy({ name: 'all', rules: 'path "kv/*" { capabilities = ["read"] }' })
  const { auth } = await maker('team').tokenCreate({ policies: ['all'] })
  assert.deepEqual((await client(auth.client_token, 'team').read('kv/a')).data, { x: '1' })
  await refused(client(auth.client_token).read('sys/mounts'), 403)
})
await check('identity', async () => {
  const { id } = (await root.write('identity/entity', { name: 'someone', metadata: { team: 'ops' } })).data
  assert.equal((await root.read(`identity/entity/id/${id}`)).data.metadata.team, 'ops')
})
await check('destinations of secret sync', async () => {
  const path = 'sys/sync/destinations/repohost/web'
  const fields = { access_token: 'not-a-real-one', repository_owner: 'acme', repisitory_name: 'web' }
  const made = (await root.write(path, fields)).data
  assert.deepEqual([made.type, made.name, made.options.granularity_level], ['repohost', 'web', 'secret-key'])
  assert.equal(made.connection_details.access_token, '*****')
  assert.equal(made.connection_details.repository_owner, 'acme')
  assert.deepEqual((await root.read(path)).data, made)
  const { health, ...all } = (await root.list('sys/sync/destinations')).data
  assert.equal(health['repohost/web'].circuit, 'closed')
  assert.deepEqual(all, { keys: ['repohost/'], key_info: { 'repohost/': ['web'] }, total_destinations: 1 })
  const changed = (await root.update(path, { secret_name_template: '{{ .SecretKey }}' })).data
  assert.equal(changed.options.secret_name_template, '{{ .SecretKey }}')
  assert.deepEqual(changed.connection_details, made.connection_details)
  assert.equal((await root.read('sys/sync/destinations/gh/web')).data.type, 'gh') // the vendor's name of the type
  await refused(root.write('sys/sync/destinations/nowhere/web', fields), 400, /repohost/)
})
await check('associations of secret sync', async () => {
  const path = 'sys/sync/destinations/repohost/web'
  const { accessor } = (await root.mounts()).data['kv/']
  const entries = async () => Object.entries((await root.read(`${path}/associations`)).data.associated_secrets)
  assert.deepEqual(await entries(), [])
  const set = (await root.write(`${path}/associations/set`, { mount: 'kv', secret_name: 'app' })).data
  assert.deepEqual([set.store_type, set.store_name], ['repohost', 'web'])
  assert.ok(Object.keys(set.associated_secrets).every((key) => key.startsWith(`${accessor}/app`)))
  const deadline = Date.now() + 60_000
  for (;;) {
    const now = await entries()
    assert.ok(now.length > 0)
    if (now.every(([, entry]) => entry.sync_status === 'EXTERNAL_SERVICE_ERROR')) break
    assert.ok(Date.now() < deadline, JSON.stringify(now))
    await new Promise((resolve) => setImmediate(resolve))
  }
  await refused(root.delete(path), 400, /associations/)
  await root.write(`${path}/associations/remove`, { mount: 'kv', name: 'app' })
  assert.deepEqual(await entries(), [])
  await root.delete(path)
  await refused(root.read(path), 404)
})
await check('audit', async () => {
  await root.enableAudit({ name: 'off', type: 'file', options: { file_path: 'discard' } })
  assert.ok((await root.audits()).data['off/'])
  await root.disableAudit({ name: 'off' })
})
await check('move a mount', async () => {
  const { migration_id } = (await root.remount({ from: 'kv', to: 'moved' })).data
  const deadline = Date.now() + 60_000
  for (;;) {
    const { status } = (await root.read(`sys/remount/status/${migration_id}`)).data.migration_info
    if (status === 'success') break
    assert.equal(status, 'in-progress')
    assert.ok(Date.now() < deadline, 'the move does not end')
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.equal((await root.read('moved/data/app')).data.data.user, 'shop')
  await root.unmount({ mount_point: 'moved' })
})
await check('help', async () => {
  assert.ok((await root.help('sys/mounts')).help)
})
await check('rotate, and a root token by key shares', async () => {
  await root.rotate()
  const { nonce, otp } = await root.generateRootInit({})
  await root.generateRootUpdate({ key: keys[0], nonce })
  const { encoded_token } = await root.generateRootUpdate({ key: keys[2], nonce })
  const hidden = Buffer.from(encoded_token, 'base64')
  const token = Buffer.from(hidden.map((b, i) => b ^ otp.charCodeAt(i))).toString()
  assert.deepEqual((await client(token).tokenLookupSelf()).data.policies, ['root'])
  await client(token).tokenRevokeSelf()
})
await check('disable and seal', async () => {
  await root.disableAuth({ mount_point: 'userpass' })
  await root.disableAuth({ mount_point: 'approle' })
  await root.seal()
  assert.equal((await nobody.status()).sealed, true)
})
