// What the pages are to those who do not see them: roles, names and headings, compared with approved texts, on a desktop and on a phone.
// Dark pages must be the same as light ones. And what they are to those who do see them: screenshots, light and dark, as grids of grey.
// COFFER_APPROVE=1 node --test aria.test.js writes both again: look at the difference.

import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { after, before, test } from 'node:test'
import { fill, places } from './places.js'
import { openPage, settled, startServer, startUse } from './server.js'

const approving = !!process.env.COFFER_APPROVE
const approved = new URL('./approved/', import.meta.url)
const picturesFile = new URL('./pictures.json', approved)
const sizes = { desktop: { width: 1200, height: 800 }, phone: { width: 360, height: 740 } }
const KEPT = 3
// Of pages that tell what goes on, only what stays: headings, columns, and what stands at the top.
const moving = ['overview', 'overview/replication', 'sync', 'sync/webhook/hook']
const staying = (text) => text.split('\n').filter((l) => /^ {0,2}(- (heading|link|button)|\S)|- (heading|columnheader)/.test(l) && !/- (text|paragraph|status|img)/.test(l)).join('\n') + '\n'

// Of a screenshot a grid of grey is kept, too coarse to read times and numbers. So large a part of the cells may differ by more than
// the step (of 255) from the approved one. Two runs differ in 0.003 of the cells, two pages in 0.04 at least.
const [columns, rows, step, differing] = [24, 16, 4, 0.03]
// The fonts of the screenshots, as Debian's fonts-dejavu-core installs them: others give other pictures.
const fonts = '/usr/share/fonts/truetype/dejavu'

let use, plugins, pictures, fontconfig

before(async () => {
  if (approving) {
    await rm(approved, { recursive: true, force: true })
    await mkdir(approved)
  }
  fontconfig = join(await mkdtemp(join(tmpdir(), 'coffer-e2e-')), 'fonts.conf')
  await writeFile(fontconfig, `<fontconfig><dir>${fonts}</dir><include ignore_missing="yes">/etc/fonts/conf.d</include></fontconfig>`)
  process.env.FONTCONFIG_FILE = fontconfig // of the browser, which is started next
  plugins = await mkdtemp(join(tmpdir(), 'coffer-e2e-')) // none: those that come with Coffer may be built, or not
  use = await startUse({ more: `plugin_directory = "${plugins}"\nfree_space_warning = "0"\nfree_space_warning_percent = 0` })
  await fill(use.api)
  pictures = approving ? {} : JSON.parse(await readFile(picturesFile, 'utf8'))
})

after(async () => {
  if (approving) await writeFile(picturesFile, JSON.stringify(pictures, Object.keys(pictures).sort(), 1) + '\n')
  await use?.stop()
  await rm(plugins, { recursive: true, force: true })
  await rm(dirname(fontconfig), { recursive: true, force: true })
})

/** The snapshot without what differs from run to run, and with the first rows of long tables and lists. */
function steady(snapshot) {
  const text = snapshot
    .replace(/\b(just now|in the next minute|(in )?\d+ (second|minute|hour|day)s?( ago)?|in \d+ (s|min|h|d)( \d+ \w+)?)\b/g, 'WHEN')
    .replace(/\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d+, \d{4}, \d+:\d+:\d+\s?[AP]M/g, 'WHEN')
    .replace(/\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/g, 'ID')
    .replace(/\b([a-z]+)_[0-9a-f]{8}\b/g, '$1_ID')
    .replace(/\b[A-Za-z0-9+/]{24,}\b/g, 'ID')
    .replace(/(?<!\[level=)\d+([.,:]\d+)*/g, '0')
  const [out, seen] = [[], []]
  let skip = Infinity
  for (const line of text.split('\n')) {
    const depth = line.search(/\S/)
    if (depth > skip) continue
    skip = Infinity
    seen.length = depth + 1 // a new parent counts from the start
    const [, role] = /^\s*- '?(row|listitem|option)\b/.exec(line) ?? []
    if (role) {
      seen[depth] = { ...seen[depth], [role]: (seen[depth]?.[role] ?? 0) + 1 }
      if (seen[depth][role] > KEPT) {
        skip = depth
        continue
      }
    }
    out.push(line)
  }
  return out.join('\n') + '\n'
}

async function compare(name, text) {
  const file = new URL(`${name}.txt`, approved)
  if (approving) return writeFile(file, text)
  assert.ok(existsSync(file), `${name} has no approved text: COFFER_APPROVE=1 node --test aria.test.js`)
  assert.equal(text, await readFile(file, 'utf8'), `${name} differs from approved/${name}.txt; if it should: COFFER_APPROVE=1 node --test aria.test.js`)
}

/** Compares a screenshot with the approved one. lab is a page of its own, which reads the picture. */
async function look(page, lab, name) {
  const png = await page.screenshot({ animations: 'disabled', caret: 'hide' })
  const grid = await lab.evaluate(async ([data, columns, rows]) => {
    const picture = await createImageBitmap(new Blob([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))]))
    const canvas = new OffscreenCanvas(columns, rows).getContext('2d')
    canvas.imageSmoothingQuality = 'high'
    canvas.drawImage(picture, 0, 0, columns, rows)
    const pixels = canvas.getImageData(0, 0, columns, rows).data
    return Array.from({ length: columns * rows }, (_, i) => Math.floor((pixels[4 * i] + pixels[4 * i + 1] + pixels[4 * i + 2]) / 3).toString(16).padStart(2, '0')).join('')
  }, [png.toString('base64'), columns, rows])
  if (approving) {
    pictures[name] = grid
    return
  }
  const cells = (text) => text.match(/../g).map((c) => parseInt(c, 16))
  const want = cells(pictures[name] ?? '00')
  const others = cells(grid).filter((c, i) => !(Math.abs(c - want[i]) <= step)).length
  if (others <= differing * columns * rows) return
  const file = join(tmpdir(), `coffer-e2e-${name}.png`)
  await writeFile(file, png)
  assert.fail(`${name} looks different: ${others} of ${columns * rows} parts of the picture; it is in ${file}`)
}

const nameOf = (place) => place.replace(/%2F/g, '').replace(/\W+/g, '-').replace(/-$/, '')

/** The snapshot of what is there when nothing loads any more. */
async function snapshot(locator) {
  const page = locator.page()
  for (let before = ''; ; ) {
    await settled(page)
    await page.waitForFunction(() => [...document.querySelectorAll('main .host')].every((h) => h.shadowRoot?.querySelector('[role=textbox]'))) // editors come last
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))))
    const now = steady(await locator.ariaSnapshot())
    if (now === before && !now.includes('status "Loading"')) return now // numbers are not compared, so that what moves settles, too
    before = now
  }
}

for (const [size, viewport] of Object.entries(sizes)) {
  test(`pages are what was approved, ${size}`, async () => {
    await use.as(use.rootToken, 'secrets', async (page) => {
      const lab = await use.browser.newPage()
      await page.locator('main h1').waitFor()
      await compare(`frame.${size}`, await snapshot(page.locator('body')))
      for (const place of places) {
        await page.goto(`${use.server.url}/ui/#/${place}`)
        await page.locator('main h1').waitFor()
        const main = page.locator('main')
        const seen = async () => (moving.includes(place) ? staying(await snapshot(main)) : snapshot(main))
        const light = await seen()
        if (!moving.includes(place)) await look(page, lab, `${nameOf(place)}.${size}.light`)
        await page.emulateMedia({ colorScheme: 'dark' })
        assert.equal(await seen(), light, `${place} is another page when it is dark`)
        if (!moving.includes(place)) await look(page, lab, `${nameOf(place)}.${size}.dark`)
        await page.emulateMedia({ colorScheme: 'light' })
        await compare(`${nameOf(place)}.${size}`, light)
      }
      await lab.close()
    }, { viewport, locale: 'en-US', reducedMotion: 'reduce' })
  })

  test(`the pages before a sign-in are what was approved, ${size}`, async () => {
    const server = await startServer()
    const { page, context } = await openPage(use.browser, server, { viewport, locale: 'en-US' })
    try {
      await page.goto(`${server.url}/ui/`)
      await page.getByRole('heading', { name: /Initiali/ }).waitFor()
      await compare(`init.${size}`, await snapshot(page.locator('body')))
      await page.goto(`${use.server.url}/ui/`)
      await page.getByRole('heading', { name: 'Sign in' }).waitFor()
      await compare(`sign-in.${size}`, await snapshot(page.locator('body')))
    } finally {
      await context.close()
      await server.stop()
    }
  })
}

test('each approved text is of a page', { skip: approving }, async () => {
  const names = new Set([...places.map(nameOf), 'frame', 'init', 'sign-in', 'pictures'])
  assert.deepEqual((await readdir(approved)).filter((f) => !names.has(f.split('.')[0])), [])
})
