import { notify } from './notices.svelte'

const CLEARED_AFTER = 45 // seconds

let clearing = 0

/** Copies text and says so. A secret is taken out of the clipboard again, if the page may write it then. */
export async function copy(text: string, what: string, secret = true) {
  clearTimeout(clearing)
  if (!(await written(text))) {
    return notify('Your browser does not let this page use the clipboard. Reveal the text and copy it by hand.', 'warning')
  }
  if (!secret || !navigator.clipboard) return notify(`${what} copied`)
  notify(`${what} copied; the clipboard is cleared in ${CLEARED_AFTER} s`)
  clearing = window.setTimeout(clear, CLEARED_AFTER * 1000)
}

/** Browsers let only a page with the focus write: until it has that, the clipboard stays as it is. */
async function clear() {
  try {
    await navigator.clipboard.writeText('')
    notify('The clipboard is cleared')
  } catch {
    addEventListener('focus', clear, { once: true })
  }
}

async function written(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return selected(text) // no clipboard on plain http
  }
}

function selected(text: string): boolean {
  const area = document.createElement('textarea')
  area.value = text
  area.className = 'offscreen'
  const dialog = document.querySelector('dialog[open]') ?? document.body
  dialog.append(area)
  area.select()
  const ok = document.execCommand('copy')
  area.remove()
  return ok
}

/** Offers text, or what the server sent, as a file. */
export function download(name: string, content: string | Blob) {
  const anchor = document.createElement('a')
  anchor.href = URL.createObjectURL(typeof content === 'string' ? new Blob([content], { type: 'text/plain' }) : content)
  anchor.download = name
  anchor.click()
  URL.revokeObjectURL(anchor.href)
}
