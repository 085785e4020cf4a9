// The npm module samlp as the identity provider, in this process, behind a form for name and password.

import express from 'express'
import samlp from 'samlp'
import { makeDirectory, makeKey } from './process.js'

/** Text for HTML. */
const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`)

/** What samlp asks about a user: the attributes under their own names, "mail" being the subject. */
class Profile {
  constructor(user) {
    this.user = user
  }
  getClaims() {
    return this.user
  }
  getNameIdentifier() {
    return { nameIdentifier: this.user.mail[0] }
  }
}
Profile.prototype.metadata = []

/**
 * Starts it with these users: name -> {password, attributes}, for service providers that take answers at these URLs. Leaving
 * the form with "Cancel" makes it answer that nobody logged in. configure() takes options of samlp; what is not given is as at
 * the start.
 */
export async function startSamlp(users, acsURLs) {
  const dir = await makeDirectory('samlp')
  const pair = await makeKey(dir.path, 'samlp')
  await dir.remove()
  const app = express()
  const defaults = { issuer: 'urn:example:samlp', cert: pair.cert, key: pair.key }
  let options = defaults

  app.get('/metadata', (req, res) => {
    samlp.metadata({ ...options, profileMapper: Profile, redirectEndpointPath: '/sso', postEndpointPath: '/sso' })(req, res)
  })

  const form = (req, problem = '') => `<!doctype html><title>Log in</title><h1>Log in to samlp</h1><p role="alert">${problem}</p>
<form method="post" action="${escaped(req.originalUrl)}">
<label>Name <input name="username" autocomplete="off"></label>
<label>Password <input name="password" type="password" autocomplete="off"></label>
<button name="action" value="login">Log in</button><button name="action" value="cancel">Cancel</button>
</form>`
  app.get('/sso', (req, res) => res.send(form(req)))

  app.post('/sso', express.urlencoded({ extended: false }), (req, res, next) => {
    samlp.parseRequest(req, (err, request) => {
      if (err) return next(err)
      if (!acsURLs.includes(request.assertionConsumerServiceURL)) return res.status(400).send('unknown service provider')
      const settings = {
        ...options,
        destination: request.assertionConsumerServiceURL,
        recipient: request.assertionConsumerServiceURL,
        inResponseTo: request.id,
        RelayState: req.query.RelayState,
      }
      if (req.body.action === 'cancel') {
        Object.assign(settings, {
          signResponse: true,
          signatureAlgorithm: 'rsa-sha256',
          digestAlgorithm: 'sha256',
          error: { code: 'urn:oasis:names:tc:SAML:2.0:status:Responder', description: 'The user said no.' },
          getPostURL: (_, callback) => callback(null, request.assertionConsumerServiceURL),
        })
        return samlp.sendError(settings)(req, res, next)
      }
      const user = users[req.body.username]
      if (user?.password !== req.body.password) return res.status(401).send(form(req, 'Wrong name or password.'))
      samlp.auth({
        ...settings,
        profileMapper: (profile) => new Profile(profile),
        getUserFromRequest: () => user.attributes,
        getPostURL: (_audience, _dom, _req, callback) => callback(null, request.assertionConsumerServiceURL),
      })(req, res, next)
    })
  })

  const server = await new Promise((resolve) => {
    const s = app.listen(0, '127.0.0.1', () => resolve(s))
  })
  const url = `http://127.0.0.1:${server.address().port}`
  return {
    entityID: defaults.issuer,
    metadataURL: `${url}/metadata`,
    ssoURL: `${url}/sso`,
    cert: pair.cert,
    configure: (given = {}) => (options = { ...defaults, ...given }),
    stop: () =>
      new Promise((resolve) => {
        server.close(resolve)
        server.closeAllConnections()
      }),
  }
}
