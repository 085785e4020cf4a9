// What the engines and auth methods have in them: a table that the page of a mount goes by.

import type { Problem } from './api'
import { sentence } from './format'
import { lines, pairs, words } from './identity'

export interface Field {
  name: string
  label: string
  /** How it is typed: a text, words, name=value lines, a lifetime, a number, yes or no, a long text, a secret that is never read back, one of several. */
  kind?: 'text' | 'list' | 'map' | 'ttl' | 'number' | 'check' | 'area' | 'secret' | 'choice'
  choices?: string[]
  help?: string
  placeholder?: string
  required?: boolean
  /** Of a long text. */
  rows?: number
  /** What the server takes if it is not given; '' if that cannot be said. */
  initial?: string
}

/** Something that a mount has many of, each with a name. */
export interface Kind {
  path: string
  title: string
  one: string
  many?: string
  /** What a deletion does, if it is not that what was handed out stays. */
  gone?: string
  fields: Field[]
  /** Sent unseen: with a new one these, with a change what it has of them. */
  fixed?: Record<string, unknown>
}

const policies: Field = { name: 'token_policies', label: 'Policies', kind: 'list', placeholder: 'app-read, ops', help: 'What its tokens may do.' }
const tokens: Field[] = [
  policies,
  { name: 'token_ttl', label: 'Lifetime of tokens', kind: 'ttl', placeholder: '1h' },
  { name: 'token_max_ttl', label: 'Longest lifetime', kind: 'ttl', placeholder: '24h', help: 'Renewals included.' },
  { name: 'token_bound_cidrs', label: 'Networks', kind: 'list', placeholder: '10.0.0.0/8', help: 'Where logins and tokens may come from. Empty: anywhere.' },
]

export const kinds: Record<string, Kind[]> = {
  approle: [
    {
      path: 'role', title: 'Roles', one: 'role',
      fields: [
        ...tokens,
        { name: 'secret_id_ttl', label: 'Lifetime of secret ids', kind: 'ttl', placeholder: '24h', help: 'Empty: without end.' },
        { name: 'secret_id_num_uses', label: 'Logins of a secret id', kind: 'number', help: '0 is without limit; 1 is for pipelines.' },
        { name: 'bind_secret_id', label: 'A login needs a secret id', kind: 'check' },
      ],
    },
  ],
  userpass: [{ path: 'users', title: 'Users', one: 'user', fields: [{ name: 'password', label: 'Password', kind: 'secret' }, ...tokens] }],
  cert: [
    {
      path: 'certs', title: 'Roles', one: 'role',
      fields: [
        { name: 'certificate', label: 'Certificate', kind: 'area', required: true, help: 'PEM: the CAs that may have issued what clients show, or the one certificate of a client.' },
        { name: 'allowed_common_names', label: 'Common names', kind: 'list', help: '“*” stands for anything. Empty: any.' },
        { name: 'allowed_dns_sans', label: 'DNS names', kind: 'list' },
        { name: 'allowed_uri_sans', label: 'URIs', kind: 'list' },
        ...tokens,
      ],
    },
  ],
  saml: [
    {
      path: 'role', title: 'Roles', one: 'role',
      fields: [
        { name: 'bound_subjects', label: 'Subjects', kind: 'list', help: 'Who may sign in, as the identity provider names them. Empty: anybody.' },
        { name: 'bound_attributes', label: 'Attributes, a name=value,value in each line', kind: 'map', placeholder: 'groups=dev,ops', help: 'Each must have one of its values.' },
        { name: 'groups_attribute', label: 'Attribute with the groups', placeholder: 'groups' },
        ...tokens,
      ],
    },
  ],
  jwt: [
    {
      path: 'role', title: 'Roles', one: 'role', fixed: { role_type: 'jwt' },
      fields: [
        { name: 'user_claim', label: 'Claim that names the user', required: true, placeholder: 'sub' },
        { name: 'bound_audiences', label: 'Audiences', kind: 'list', placeholder: 'https://coffer.example.com' },
        { name: 'bound_subject', label: 'Subject' },
        { name: 'bound_claims', label: 'Claims, a name=value in each line', kind: 'map', placeholder: 'repository=team/app' },
        { name: 'groups_claim', label: 'Claim with the groups' },
        ...tokens,
      ],
    },
  ],
  kubernetes: [
    {
      path: 'role', title: 'Roles', one: 'role',
      fields: [
        { name: 'bound_service_account_names', label: 'Service accounts', kind: 'list', required: true, placeholder: 'app' },
        { name: 'bound_service_account_namespaces', label: 'Namespaces', kind: 'list', required: true, placeholder: 'default' },
        { name: 'audience', label: 'Audience' },
        ...tokens,
      ],
    },
  ],
  aws: [
    {
      path: 'roles', title: 'Roles', one: 'role',
      fields: [
        { name: 'credential_type', label: 'Kind of credentials', required: true, placeholder: 'assumed_role', help: 'iam_user, assumed_role, federation_token or session_token.' },
        { name: 'role_arns', label: 'Roles to assume', kind: 'list', help: 'ARNs; for assumed_role.' },
        { name: 'policy_arns', label: 'Managed policies', kind: 'list', help: 'ARNs.' },
        { name: 'policy_document', label: 'Policy', kind: 'area', help: 'As JSON.' },
        { name: 'default_sts_ttl', label: 'Lifetime', kind: 'ttl', placeholder: '1h' },
        { name: 'max_sts_ttl', label: 'Longest lifetime', kind: 'ttl' },
      ],
    },
    {
      path: 'static-roles', title: 'Static roles', one: 'static role',
      fields: [
        { name: 'username', label: 'User at the provider', required: true },
        { name: 'rotation_period', label: 'New key every', kind: 'ttl', placeholder: '720h' },
      ],
    },
  ],
}
kinds.oidc = [
  {
    path: 'role', title: 'Roles', one: 'role', fixed: { role_type: 'oidc' },
    fields: [
      { name: 'user_claim', label: 'Claim that names the user', required: true, placeholder: 'sub' },
      { name: 'allowed_redirect_uris', label: 'Where browsers may come back to', kind: 'list', required: true, placeholder: 'https://coffer.example.com:8200/ui/vault/auth/oidc/oidc/callback', help: 'That of this UI, and that of the command line.' },
      { name: 'oidc_scopes', label: 'Scopes to ask for', kind: 'list', placeholder: 'profile' },
      { name: 'groups_claim', label: 'Claim with the groups' },
      { name: 'bound_claims', label: 'Claims, a name=value in each line', kind: 'map' },
      ...tokens,
    ],
  },
]
kinds.cloud = kinds.aws!

/** The configuration of a mount, which is one form at "config". */
export const configs: Record<string, Field[]> = {
  saml: [
    { name: 'idp_metadata_url', label: 'Address of its metadata', placeholder: 'https://idp.example.com/metadata', help: 'Its changes then arrive by themselves. Excludes the next three.' },
    { name: 'idp_entity_id', label: 'Its entity id' },
    { name: 'idp_sso_url', label: 'Where it takes requests' },
    { name: 'idp_cert', label: 'Certificate that it signs with', kind: 'area', help: 'PEM.' },
    { name: 'entity_id', label: 'Our entity id' },
    { name: 'acs_urls', label: 'Where its responses go', kind: 'list' },
    { name: 'default_role', label: 'Role of logins that name none' },
    { name: 'name_id_format', label: 'Format of names', placeholder: 'persistent', help: 'Set it to what the identity provider sends.' },
    { name: 'sign_authn_requests', label: 'Sign our requests', kind: 'check' },
  ],
  jwt: [
    { name: 'oidc_discovery_url', label: 'Issuer that publishes its keys', placeholder: 'https://token.actions.example.com' },
    { name: 'jwks_url', label: 'Or the address of its keys' },
    { name: 'bound_issuer', label: 'Issuer that tokens must name' },
    { name: 'default_role', label: 'Role of logins that name none' },
  ],
  kubernetes: [
    { name: 'kubernetes_host', label: 'Address of the API server', required: true, placeholder: 'https://kubernetes.default.svc' },
    { name: 'kubernetes_ca_cert', label: 'Its CA certificate', kind: 'area' },
    { name: 'token_reviewer_jwt', label: 'Token that may review others', kind: 'secret', help: 'Typed again with each change. Empty: that of this server, or the one that logs in.' },
    { name: 'disable_local_ca_jwt', label: 'This server is not in that cluster', kind: 'check' },
  ],
}
configs.oidc = [
  ...configs.jwt!,
  { name: 'oidc_client_id', label: 'Our client id' },
  { name: 'oidc_client_secret', label: 'Its secret', kind: 'secret', help: 'Typed again with each change.' },
  { name: 'oidc_response_mode', label: 'How the provider answers', kind: 'choice', choices: ['', 'query', 'form_post'], help: 'With form_post it has the browser post a form.' },
]

/** What a rejected request says of these fields: `field "x": …; y must …; …`. What names none of them belongs to the one before. */
export function faults(fields: Field[], problem?: Problem): Record<string, string> {
  const found: Record<string, string> = {}
  let last = ''
  for (const said of (problem?.errors ?? []).flatMap((e) => e.split('; '))) {
    const [, quoted, bare, rest] = /^(?:field "([^"]+)":? |([a-z]\w*) )?([^]*)$/.exec(said)!
    const name = quoted ?? bare ?? ''
    if (fields.some((f) => f.name === name)) {
      found[name] = sentence(quoted ? rest! : said)
      last = name
    } else if (last) found[last] += ` ${sentence(said)}`
  }
  return found
}

/** Engines and methods, of which a write of the configuration replaces all of it. */
export const replaced = ['jwt', 'oidc', 'kubernetes']

/** Seconds as the API takes a lifetime. */
export function lifetime(seconds: number): string {
  if (!seconds) return ''
  if (seconds % 3600 === 0) return `${seconds / 3600}h`
  return seconds % 60 === 0 ? `${seconds / 60}m` : `${seconds}s`
}

type Typed = Record<string, string | number | boolean>

const listed = (v: unknown) => (Array.isArray(v) ? v.join(', ') : String(v ?? ''))

/** What the server has, as it is typed. */
export function typed(fields: Field[], have: Record<string, any>): Typed {
  return Object.fromEntries(
    fields.map((f) => {
      const v = have[f.name]
      switch (f.kind) {
        case 'list':
          return [f.name, listed(v)]
        case 'map':
          return [f.name, lines(Object.fromEntries(Object.entries(v ?? {}).map(([k, of]) => [k, Array.isArray(of) ? of.join(',') : String(of)])))]
        case 'ttl':
          return [f.name, lifetime(Number(v ?? 0))]
        case 'number':
          return [f.name, v ?? f.initial ?? 0]
        case 'check':
          return [f.name, v ?? (f.initial === 'true' || f.name === 'bind_secret_id')]
        case 'secret':
          return [f.name, '']
      }
      return [f.name, String(v ?? f.initial ?? '')]
    }),
  )
}

/** Those that no page shows what was typed into. */
export const secrets = (fields: Field[]) => fields.filter((f) => f.kind === 'secret').map((f) => f.name)

/** The fields that were changed, as the API takes them. */
export function changes(fields: Field[], before: Typed, now: Typed): Record<string, unknown> {
  const out: Record<string, unknown> = {}
  for (const f of fields) {
    const v = now[f.name]
    if (v === before[f.name]) continue
    if (f.kind === 'list') out[f.name] = words(String(v))
    else if (f.kind === 'map') out[f.name] = pairs(String(v))
    else if (f.kind === 'ttl') out[f.name] = String(v).trim() || '0'
    else out[f.name] = typeof v === 'string' && f.kind !== 'secret' ? v.trim() : v
  }
  return out
}

interface IdP {
  idp_entity_id: string
  idp_sso_url: string
  idp_cert: string
}

/**
 * What the metadata document of an identity provider says, to be looked at before it is saved. The browser's XML parser is one of the
 * places that Trusted Types close, so these three things are looked for in the text.
 */
export function fromMetadata(xml: string): IdP | undefined {
  const plain = (t = '') => t.replaceAll('&lt;', '<').replaceAll('&gt;', '>').replaceAll('&quot;', '"').replaceAll('&apos;', "'").replaceAll('&amp;', '&')
  const tag = (t: string, name: string) => plain(new RegExp(`\\b${name}\\s*=\\s*["']([^"']*)["']`).exec(t)?.[1])
  const descriptor = /<(?:\w+:)?EntityDescriptor\b[^>]*>/.exec(xml)?.[0] ?? ''
  const services = xml.match(/<(?:\w+:)?SingleSignOnService\b[^>]*>/g) ?? []
  const redirect = services.find((s) => tag(s, 'Binding').endsWith('HTTP-Redirect')) ?? ''
  const idp = /<(?:\w+:)?IDPSSODescriptor\b[\s\S]*?<\/(?:\w+:)?IDPSSODescriptor>/.exec(xml)?.[0] ?? xml
  const keys = (idp.match(/<(?:\w+:)?KeyDescriptor\b[\s\S]*?<\/(?:\w+:)?KeyDescriptor>/g) ?? []).filter((k) => !/use\s*=\s*["']encryption/.test(k))
  const certs = keys.flatMap((k) => [...k.matchAll(/<(?:\w+:)?X509Certificate\b[^>]*>([\s\S]*?)</g)].map((m) => m[1]!.replace(/\s+/g, '')))
  const found = { idp_entity_id: tag(descriptor, 'entityID'), idp_sso_url: tag(redirect, 'Location'), idp_cert: [...new Set(certs)].map(pem).join('\n') }
  return found.idp_entity_id && found.idp_sso_url && found.idp_cert ? found : undefined
}

const pem = (base64: string) => `-----BEGIN CERTIFICATE-----\n${base64.match(/.{1,64}/g)?.join('\n')}\n-----END CERTIFICATE-----`
