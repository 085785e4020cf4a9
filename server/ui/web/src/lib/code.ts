// The editor of policies. It is a large script of its own, loaded when an editor is opened.

import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands'
import { bracketMatching, HighlightStyle, indentOnInput, StreamLanguage, syntaxHighlighting } from '@codemirror/language'
import { EditorState, RangeSet, StateEffect, StateField } from '@codemirror/state'
import { Decoration, EditorView, gutterLineClass, GutterMarker, highlightActiveLine, keymap, lineNumbers, type DecorationSet } from '@codemirror/view'
import { tags } from '@lezer/highlight'

/** The HCL of policies: comments, texts, keys, numbers, brackets. */
const hcl = StreamLanguage.define<{ comment: boolean }>({
  name: 'hcl',
  startState: () => ({ comment: false }),
  token(stream, state) {
    if (state.comment || stream.match('/*')) {
      state.comment = !stream.match(/^.*?\*\//)
      if (state.comment) stream.skipToEnd()
      return 'comment'
    }
    if (stream.eatSpace()) return null
    if (stream.match('#') || stream.match('//')) {
      stream.skipToEnd()
      return 'comment'
    }
    if (stream.match(/^"(?:[^"\\]|\\.)*"?/)) {
      const text = stream.current()
      if (/^"(create|read|update|patch|delete|list|scan|sudo)"$/.test(text)) return 'atom'
      return text === '"deny"' ? 'invalid' : 'string'
    }
    if (stream.match(/^(true|false)\b/)) return 'bool'
    if (stream.match(/^\d[\w.]*/)) return 'number'
    if (stream.match(/^path\b/)) return 'keyword'
    if (stream.match(/^[A-Za-z_][\w-]*/)) return 'propertyName'
    stream.next()
    return null
  },
  languageData: { commentTokens: { line: '#' }, closeBrackets: { brackets: ['(', '[', '{', '"'] } },
})

const colours = HighlightStyle.define([
  { tag: tags.comment, color: 'var(--muted)', fontStyle: 'italic' },
  { tag: tags.keyword, color: 'var(--accent)', fontWeight: '650' },
  { tag: tags.string, color: 'var(--brass)' },
  { tag: tags.atom, color: 'var(--accent)' },
  { tag: tags.invalid, color: 'var(--danger)' },
  { tag: [tags.bool, tags.number], color: 'var(--danger)' },
  { tag: tags.propertyName, fontWeight: '550' },
])

const looks = EditorView.theme({
  '&': { color: 'var(--ink)', backgroundColor: 'var(--surface)', border: '1px solid var(--line-strong)', borderRadius: 'var(--radius-small)', fontSize: '0.9rem' },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '-1px' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.55', minHeight: '300px', maxHeight: '65vh' },
  '.cm-content': { caretColor: 'var(--ink)' },
  '.cm-cursor': { borderLeftColor: 'var(--ink)' },
  '.cm-gutters': { backgroundColor: 'var(--sunken)', color: 'var(--muted)', borderRight: '1px solid var(--line)' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--accent-soft) 40%, transparent)' },
  '.fault': { backgroundColor: 'var(--danger-soft)' },
  '.cm-matchingBracket': { backgroundColor: 'var(--brass-soft)' },
})

class Faulty extends GutterMarker {
  override elementClass = 'fault'
}

/** The line with the fault, by the position of its beginning; the linter of the library shows images that the content policy forbids. */
const setFault = StateEffect.define<number | undefined>()
const fault = StateField.define<{ text: DecorationSet; gutter: RangeSet<GutterMarker> }>({
  create: () => ({ text: Decoration.none, gutter: RangeSet.empty }),
  update(now, change) {
    for (const e of change.effects) {
      if (!e.is(setFault)) continue
      if (e.value === undefined) return { text: Decoration.none, gutter: RangeSet.empty }
      return { text: Decoration.set([Decoration.line({ class: 'fault' }).range(e.value)]), gutter: RangeSet.of([new Faulty().range(e.value)]) }
    }
    return { text: now.text.map(change.changes), gutter: now.gutter.map(change.changes) }
  },
  provide: (f) => [EditorView.decorations.from(f, (v) => v.text), gutterLineClass.from(f, (v) => v.gutter)],
})

/**
 * Replaces a selection itself: the browser would put inline styles into the text, against the content policy. The browser's selection
 * counts where the editor has not heard of it yet.
 */
function replace(event: InputEvent, view: EditorView): boolean {
  if (event.inputType !== 'insertText' || event.isComposing || event.data === null) return false
  if (view.state.selection.main.empty) {
    const [range] = document.getSelection()?.getComposedRanges?.({ shadowRoots: [view.root as ShadowRoot] }) ?? []
    if (!range || range.collapsed) return false
    const anchor = view.posAtDOM(range.startContainer, range.startOffset)
    view.dispatch({ selection: { anchor, head: view.posAtDOM(range.endContainer, range.endOffset) } })
  }
  event.preventDefault()
  view.dispatch(view.state.replaceSelection(event.data), { userEvent: 'input.type' })
  return true
}

export interface Code {
  /** Marks a line; 0 is none. */
  mark: (line: number) => void
  end: () => void
}

/**
 * Puts an editor into a shadow root: style sheets that are made in there need no exception from the content security policy, as style
 * elements would.
 */
export function edit(root: ShadowRoot, text: string, changed: (text: string) => void, attributes: Record<string, string>): Code {
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        history(),
        indentOnInput(),
        bracketMatching(),
        highlightActiveLine(),
        fault,
        hcl,
        syntaxHighlighting(colours),
        looks,
        EditorView.lineWrapping,
        EditorView.domEventHandlers({ beforeinput: replace }),
        EditorView.contentAttributes.of(attributes),
        keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.updateListener.of((u) => u.docChanged && changed(u.state.doc.toString())),
      ],
    }),
  })
  return {
    mark(line) {
      const { doc } = view.state
      view.dispatch({ effects: setFault.of(line ? doc.line(Math.min(line, doc.lines)).from : undefined) })
    },
    end: () => view.destroy(),
  }
}
