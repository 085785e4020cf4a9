// Processes that tests start, and keys for them.

import { execFile, spawn } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

/** A directory of our own; remove() removes it. */
export async function makeDirectory(name) {
  const path = await mkdtemp(join(tmpdir(), `coffer-e2e-${name}-`))
  return { path, remove: () => rm(path, { recursive: true, force: true }) }
}

/**
 * Starts a program, which also ends when this process does. until(pattern) waits for a match in all that it writes, ended
 * for its end; stop() ends it and waits.
 */
export function start(command, args, options = {}) {
  const child = spawn('setpriv', ['--pdeathsig', 'TERM', command, ...args], { stdio: ['ignore', 'pipe', 'pipe'], ...options })
  let output = ''
  let waiting = []
  const wake = () => {
    for (const tell of waiting.splice(0)) tell()
  }
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (text) => {
      output += text
      wake()
    })
  }
  let code
  const ended = new Promise((resolve) => {
    child.once('error', (e) => (output += e.message))
    child.once('close', (status) => {
      code = status ?? -1
      resolve(code)
      wake()
    })
  })
  return {
    ended,
    output: () => output,
    async until(pattern) {
      let found
      while (!(found = pattern.exec(output))) {
        if (code !== undefined) throw new Error(`${command} ended before it wrote ${pattern}:\n${output}`)
        await new Promise((resolve) => waiting.push(resolve))
      }
      return found
    },
    async stop() {
      if (code === undefined) child.kill('SIGTERM')
      return ended
    },
  }
}

/** A private key (PKCS #8) and a certificate for it, as PEM, also in files: kind is "rsa" or "ec". */
export async function makeKey(dir, name, kind = 'rsa') {
  const files = { keyFile: join(dir, `${name}.key`), certFile: join(dir, `${name}.crt`) }
  const algorithm = kind === 'ec' ? ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256'] : ['-newkey', 'rsa:2048']
  await promisify(execFile)('openssl', [
    ...['req', '-x509', '-nodes', '-sha256', '-days', '30', '-subj', `/CN=${name}`],
    ...algorithm,
    ...['-keyout', files.keyFile, '-out', files.certFile],
  ])
  return { ...files, key: await readFile(files.keyFile, 'utf8'), cert: await readFile(files.certFile, 'utf8') }
}
