// Short messages that come and go, and the one question that can be open at a time.

export interface Notice {
  id: number
  text: string
  kind: 'done' | 'warning'
}

export const notices = $state<Notice[]>([])

let next = 0

export function notify(text: string, kind: Notice['kind'] = 'done') {
  const id = next++
  notices.push({ id, text, kind })
  setTimeout(() => dismiss(id), kind === 'done' ? 4000 : 12000)
}

export function dismiss(id: number) {
  const at = notices.findIndex((n) => n.id === id)
  if (at >= 0) notices.splice(at, 1)
}

export interface Question {
  title: string
  text: string
  action: string
  danger?: boolean
  /** What must be typed before the action can be taken. */
  typed?: string
}

let open = $state.raw<{ question: Question; answer: (yes: boolean) => void }>()

export function question() {
  return open
}

/** Asks, and answers whether the action was chosen. */
export function ask(question: Question): Promise<boolean> {
  open?.answer(false)
  return new Promise((resolve) => {
    open = {
      question,
      answer(yes) {
        open = undefined
        resolve(yes)
      },
    }
  })
}
