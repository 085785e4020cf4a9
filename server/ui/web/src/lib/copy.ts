import { notify } from './notices.svelte'

/** Copies text and says so. */
export async function copy(text: string, what: string) {
  if (await written(text)) notify(`${what} copied`)
  else notify('Your browser does not let this page use the clipboard. Reveal the text and copy it by hand.', 'warning')
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

/** Offers text as a file, made in the page. */
export function download(name: string, text: string) {
  const anchor = document.createElement('a')
  anchor.href = URL.createObjectURL(new Blob([text], { type: 'text/plain' }))
  anchor.download = name
  anchor.click()
  URL.revokeObjectURL(anchor.href)
}
