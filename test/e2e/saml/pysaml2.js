// pysaml2 as the identity provider, in a process of its own: see pysaml2_idp.py.

import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { makeDirectory, makeKey, start } from './process.js'

const here = new URL('.', import.meta.url).pathname

/** Starts it with these users, see samlp.js, for a service provider with this metadata. Its key is elliptic. */
export async function startPysaml2(users, spMetadata) {
  const dir = await makeDirectory('pysaml2')
  const in_ = (name) => join(dir.path, name)
  const pair = await makeKey(dir.path, 'idp', 'ec')
  await writeFile(in_('sp.xml'), spMetadata)
  await writeFile(in_('users.json'), JSON.stringify(users))
  const args = [join(here, 'pysaml2_idp.py'), pair.keyFile, pair.certFile, in_('sp.xml'), in_('users.json')]
  const child = start(process.env.SAML_PYTHON ?? join(here, 'venv/bin/python'), args)
  const stop = async () => {
    await child.stop()
    await dir.remove()
  }
  try {
    const [, url] = await child.until(/^ready at (\S+)$/m)
    return { entityID: `${url}/metadata`, metadataURL: `${url}/metadata`, ssoURL: `${url}/sso`, cert: pair.cert, stop, output: child.output }
  } catch (e) {
    await stop()
    throw e
  }
}
