// Every page in Firefox: it opens, the policy of its content and its scripts raise nothing, and a secret is written and read. The other
// tests are in Chromium.

import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import puppeteer from 'puppeteer-core'
import { fill, places } from './places.js'
import { startUse } from './server.js'

let use, firefox

before(async () => {
  use = await startUse()
  await fill(use.api)
  firefox = await puppeteer.launch({ browser: 'firefox', executablePath: process.env.FIREFOX ?? '/usr/bin/firefox-esr', headless: true })
})

after(async () => {
  await firefox?.close()
  await use?.stop()
})

/** A page signed in as root; faults are what must not happen in it. */
async function signedIn() {
  const page = await firefox.newPage()
  await page.setViewport({ width: 1200, height: 800 })
  page.setDefaultTimeout(60_000)
  const faults = []
  page.on('pageerror', (e) => faults.push(e.message))
  page.on('console', (m) => m.type() === 'error' && faults.push(m.text()))
  await page.evaluateOnNewDocument(() => {
    document.addEventListener('securitypolicyviolation', (e) => console.error(`${e.violatedDirective}: ${e.blockedURI}`))
  })
  await page.goto(`${use.server.url}/ui/`)
  await (await page.waitForSelector('input[name=token]')).type(use.rootToken)
  await page.keyboard.press('Enter')
  await page.waitForSelector('main h1')
  return { page, faults }
}

test('every page opens in Firefox', async () => {
  const { page, faults } = await signedIn()
  for (const place of places) {
    await page.goto(`${use.server.url}/ui/#/${place}`)
    await page.waitForFunction(() => document.querySelector('main h1') && !document.querySelector('main [aria-label=Loading]'))
    const title = await page.$eval('main h1', (h) => h.textContent.trim())
    assert.notEqual(title, '', place)
    assert.deepEqual(faults, [], place)
  }
  await page.close()
})

test('a secret is written and read in Firefox', async () => {
  const { page, faults } = await signedIn()
  await page.goto(`${use.server.url}/ui/#/secrets/team%2F/edit/app/stripe`)
  await page.waitForSelector('main form :is(textarea, input)')
  await page.evaluate(() => [...document.querySelectorAll('main form button')].find((b) => b.type === 'submit').click())
  await page.waitForFunction(() => location.hash.includes('/show/app/stripe'))
  const { data } = await use.api('GET', 'team/data/app/stripe')
  assert.deepEqual(data.data, { key: 'two', mode: 'live' })
  assert.equal(data.metadata.version, 3)
  assert.deepEqual(faults, [])
  await page.close()
})
