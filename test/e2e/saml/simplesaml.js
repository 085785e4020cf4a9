// SimpleSAMLphp as the identity provider: Debian's package, unpacked by ../run, on PHP's own web server.

import { mkdir, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { makeDirectory, makeKey, start } from './process.js'

const installed = process.env.SIMPLESAMLPHP ?? new URL('../simplesamlphp', import.meta.url).pathname

/** A value as PHP source. */
function php(value) {
  if (Array.isArray(value)) return `[${value.map(php).join(', ')}]`
  if (value && typeof value === 'object') {
    return `[${Object.entries(value)
      .map(([k, v]) => `${/^\d+$/.test(k) ? k : php(k)} => ${php(v)}`)
      .join(', ')}]`
  }
  if (typeof value === 'string') return `'${value.replace(/[\\']/g, '\\$&')}'`
  return JSON.stringify(value)
}

/**
 * Starts it with these users: name -> {password, attributes}. The subject of an answer is the user's attribute "mail".
 * configure({sign, algorithm, key, next}) says what is signed ("response", "assertion" or "both"), how, with which of the keys
 * 0 and 1, and whether the metadata announces the other one; trust(xml) makes a service provider known by its metadata.
 */
export async function startSimpleSAML(users) {
  const dir = await makeDirectory('simplesaml')
  const in_ = (name) => join(dir.path, name)
  for (const name of ['config', 'metadata', 'cert', 'log', 'data', 'tmp', 'sessions', 'docroot']) await mkdir(in_(name))
  await symlink(join(installed, 'usr/share/simplesamlphp/www'), in_('docroot/simplesaml'))
  const keys = [await makeKey(in_('cert'), 'first'), await makeKey(in_('cert'), 'second')]
  const write = (name, variable, value) => writeFile(in_(name), `<?php\n${variable} = ${php(value)};\n`)

  await write('config/config.php', '$config', {
    baseurlpath: 'simplesaml/',
    certdir: `${in_('cert')}/`,
    loggingdir: `${in_('log')}/`,
    datadir: `${in_('data')}/`,
    tempdir: in_('tmp'),
    metadatadir: `${in_('metadata')}/`,
    secretsalt: 'only for tests',
    'auth.adminpassword': 'only for tests',
    timezone: 'UTC',
    showerrors: true,
    errorreporting: false,
    'logging.handler': 'file',
    'enable.saml20-idp': true,
    'module.enable': { exampleauth: true, core: true, saml: true },
    'session.cookie.secure': false,
    'session.cookie.samesite': null,
    'language.cookie.secure': false,
    'language.cookie.samesite': null,
    'session.phpsession.savepath': in_('sessions'),
    'store.type': 'phpsession',
    'metadata.sources': [{ type: 'flatfile' }],
  })
  const people = Object.entries(users).map(([name, { password, attributes }]) => [`${name}:${password}`, attributes])
  await write('config/authsources.php', '$config', { people: { 0: 'exampleauth:UserPass', ...Object.fromEntries(people) } })

  const trust = (xml) => writeFile(in_('sp.xml'), xml)

  // What an administrator gets by SimpleSAMLphp's converter, and completes: the service provider's wish to have assertions
  // signed would otherwise override what we ask for here.
  const accept = (sign) =>
    writeFile(
      in_('metadata/saml20-sp-remote.php'),
      `<?php
foreach (SimpleSAML\\Metadata\\SAMLParser::parseDescriptorsFile(${php(in_('sp.xml'))}) as $id => $entity) {
  $metadata[$id] = ${php({ 'saml20.sign.response': sign !== 'assertion', 'saml20.sign.assertion': sign !== 'response' })} + $entity->getMetadata20SP();
}
`,
    )

  async function configure({ sign = 'both', algorithm = 'rsa-sha256', key = 0, next = false } = {}) {
    await accept(sign)
    await write('metadata/saml20-idp-hosted.php', "$metadata['__DYNAMIC:1__']", {
      host: '__DEFAULT__',
      privatekey: `${in_('cert')}/${['first', 'second'][key]}.key`,
      certificate: `${in_('cert')}/${['first', 'second'][key]}.crt`,
      ...(next && {
        new_privatekey: `${in_('cert')}/${['first', 'second'][1 - key]}.key`,
        new_certificate: `${in_('cert')}/${['first', 'second'][1 - key]}.crt`,
      }),
      auth: 'people',
      'signature.algorithm': `http://www.w3.org/2001/04/xmldsig-more#${algorithm}`,
      authproc: Object.fromEntries(
        [
          'urn:oasis:names:tc:SAML:1.1:nameid-format:unspecified',
          'urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress',
          'urn:oasis:names:tc:SAML:2.0:nameid-format:persistent',
          'urn:oasis:names:tc:SAML:2.0:nameid-format:transient',
        ].map((Format, i) => [i + 1, { class: 'saml:AttributeNameID', attribute: 'mail', Format }]),
      ),
    })
  }

  await trust('<md:EntitiesDescriptor xmlns:md="urn:oasis:names:tc:SAML:2.0:metadata"/>')
  await configure()
  const args = ['-d', 'opcache.enable=0', '-S', '127.0.0.1:0', '-t', in_('docroot')]
  const child = start('php', args, { env: { PATH: process.env.PATH, SIMPLESAMLPHP_CONFIG_DIR: in_('config') } })
  const stop = async () => {
    await child.stop()
    await dir.remove()
  }
  try {
    const [, url] = await child.until(/Development Server \((\S+)\) started/)
    const base = `${url}/simplesaml/saml2/idp`
    return {
      entityID: `${base}/metadata.php`,
      metadataURL: `${base}/metadata.php`,
      ssoURL: `${base}/SSOService.php`,
      keys,
      trust,
      configure,
      stop,
      output: child.output,
    }
  } catch (e) {
    await stop()
    throw e
  }
}
