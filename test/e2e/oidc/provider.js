// The npm module oidc-provider, a certified OpenID provider, behind a form for name and password. It writes its issuer once it can
// be reached, and ends with its standard input. COFFER_CLIENT is the client: {id, secret, redirects}.

import { generateKeyPairSync, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import Provider, { errors } from 'oidc-provider'

const users = {
  ada: { password: 'correct horse', groups: ['engineers', 'staff'] },
  eve: { password: 'battery staple', groups: ['visitors'] },
}
const { id, secret, redirects } = JSON.parse(process.env.COFFER_CLIENT)

const server = createServer()
server.listen(0, '127.0.0.1')
await once(server, 'listening')
const issuer = `http://127.0.0.1:${server.address().port}`

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: id,
      client_secret: secret,
      redirect_uris: redirects,
      response_types: ['code'],
      grant_types: ['authorization_code'],
      token_endpoint_auth_method: 'client_secret_basic',
    },
  ],
  jwks: { keys: [{ ...privateKey.export({ format: 'jwk' }), kid: randomUUID(), use: 'sig', alg: 'RS256' }] },
  cookies: { keys: [randomUUID()] },
  claims: { openid: ['sub'], profile: ['name', 'groups'] }, // those of profile are at /me only
  pkce: { required: () => true },
  features: { devInteractions: { enabled: false } },
  interactions: { url: (_, { uid }) => `/interaction/${uid}` },
  findAccount: (_, name) => ({ accountId: name, claims: () => ({ sub: name, name, groups: users[name].groups }) }),
  ttl: { AccessToken: 600, AuthorizationCode: 60, Grant: 600, IdToken: 600, Interaction: 600, Session: 600 },
  // Whoever logs in has agreed to what the client asks for.
  async loadExistingGrant({ oidc }) {
    const grant = new oidc.provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId })
    grant.addOIDCScope('openid profile')
    await grant.save()
    return grant
  },
})
const handle = provider.callback()

const form = (problem = '') => `<!doctype html><title>Log in</title><h1>Log in to the provider</h1><p role="alert">${problem}</p>
<form method="post"><label>Name <input name="username" autocomplete="off"></label>
<label>Password <input name="password" type="password" autocomplete="off"></label>
<button name="action" value="login">Log in</button><button name="action" value="cancel">Cancel</button></form>`

async function interact(req, res) {
  await provider.interactionDetails(req, res) // it is this browser's
  res.setHeader('Content-Type', 'text/html; charset=utf-8')
  if (req.method !== 'POST') return res.end(form())
  const given = new URLSearchParams(Buffer.concat(await req.toArray()).toString())
  if (given.get('action') === 'cancel') {
    return provider.interactionFinished(req, res, { error: 'access_denied', error_description: 'The user said no.' })
  }
  const name = given.get('username')
  if (users[name]?.password !== given.get('password')) return res.end(form('Wrong name or password.'))
  return provider.interactionFinished(req, res, { login: { accountId: name } })
}

server.on('request', (req, res) => {
  if (!req.url.startsWith('/interaction/')) return handle(req, res)
  interact(req, res).catch((e) => {
    if (!(e instanceof errors.SessionNotFound)) console.error(e)
    res.statusCode = 400
    res.end()
  })
})
console.log(issuer)
process.stdin.resume().on('end', () => process.exit())
