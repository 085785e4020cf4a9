// The pages, in one table: navigation, palette and addresses follow it.

import type { Component } from 'svelte'
import type { IconName } from '../parts/Icon.svelte'
import type { Capability } from './may.svelte'

export const groups = ['Secrets', 'Access', 'Deliver', 'Protect', 'Cluster'] as const

export interface Page {
  /** Its address after "#/", which other addresses of the page begin with. */
  path: string
  title: string
  group: (typeof groups)[number]
  icon: IconName
  load: () => Promise<{ default: Component }>
  /** Has addresses of its own below, and says itself which of them are wrong. */
  deep?: boolean
  /** What the token must be allowed to do for the page to be offered. */
  needs?: [path: string, ...Capability[]]
  /** About the whole cluster: what it needs is asked of the root namespace. */
  clusterWide?: boolean
  /** In the bar at the bottom of phones. */
  phone?: boolean
  /** Other words that the palette finds it by. */
  words?: string
}

export const pages: Page[] = [
  { path: 'home', title: 'Home', group: 'Secrets', icon: 'home', load: () => import('../pages/Home.svelte'), words: 'attention start' },
  { path: 'secrets', title: 'Secrets', group: 'Secrets', icon: 'key', deep: true, phone: true, load: () => import('../pages/Secrets.svelte'), words: 'kv' },
  { path: 'engines', title: 'Engines', group: 'Secrets', icon: 'engine', deep: true, needs: ['sys/mounts', 'read'], load: () => import('../pages/Engines.svelte'), words: 'mounts enable' },
  { path: 'wrapping', title: 'Wrap', group: 'Secrets', icon: 'wrap', load: () => import('../pages/Wrapping.svelte'), words: 'unwrap share once' },
  { path: 'policies', title: 'Policies', group: 'Access', icon: 'policy', deep: true, phone: true, needs: ['sys/policies/acl', 'list'], load: () => import('../pages/Policies.svelte'), words: 'acl' },
  { path: 'policies/password', title: 'Password policies', group: 'Access', icon: 'code', needs: ['sys/policies/password', 'list'], load: () => import('../pages/Passwords.svelte'), words: 'generate' },
  { path: 'engines/methods', title: 'Auth methods', group: 'Access', icon: 'secret', deep: true, needs: ['sys/auth', 'read'], load: () => import('../pages/Methods.svelte'), words: 'login saml userpass approle' },
  { path: 'tokens', title: 'Tokens', group: 'Access', icon: 'token', load: () => import('../pages/Tokens.svelte'), words: 'accessor revoke' },
  { path: 'entities', title: 'Entities', group: 'Access', icon: 'person', deep: true, needs: ['identity/entity/name', 'list'], load: () => import('../pages/Entities.svelte'), words: 'identity people programs alias' },
  { path: 'groups', title: 'Groups', group: 'Access', icon: 'namespace', deep: true, needs: ['identity/group/name', 'list'], load: () => import('../pages/Groups.svelte'), words: 'identity members external' },
  { path: 'mfa', title: 'Second factors', group: 'Access', icon: 'lease', needs: ['identity/mfa/method/totp/generate', 'update'], load: () => import('../pages/Mfa.svelte'), words: 'mfa totp codes enrol login enforcement' },
  { path: 'issuer', title: 'Identity tokens', group: 'Access', icon: 'done', needs: ['identity/oidc/config', 'read'], clusterWide: true, load: () => import('../pages/Issuer.svelte'), words: 'oidc issuer keys cloud federation' },
  { path: 'sync', title: 'Sync', group: 'Deliver', icon: 'sync', deep: true, phone: true, needs: ['sys/sync/destinations', 'list'], load: () => import('../pages/Sync.svelte'), words: 'destinations deliver associations' },
  { path: 'leases', title: 'Leases', group: 'Protect', icon: 'lease', needs: ['sys/leases/count', 'read'], load: () => import('../pages/Leases.svelte'), words: 'revoke expire' },
  { path: 'limits', title: 'Limits', group: 'Protect', icon: 'limit', needs: ['sys/quotas/rate-limit', 'list'], clusterWide: true, load: () => import('../pages/Limits.svelte'), words: 'quotas rate' },
  { path: 'audit', title: 'Audit', group: 'Protect', icon: 'audit', needs: ['sys/audit', 'read'], clusterWide: true, load: () => import('../pages/Audit.svelte'), words: 'log devices' },
  { path: 'audit/search', title: 'Log search', group: 'Protect', icon: 'search', needs: ['sys/audit-search/*', 'update', 'sudo'], clusterWide: true, load: () => import('../pages/AuditSearch.svelte'), words: 'log records who did what' },
  { path: 'overview', title: 'Cluster', group: 'Cluster', icon: 'overview', needs: ['sys/ha-status', 'read'], clusterWide: true, phone: true, load: () => import('../pages/Overview.svelte'), words: 'nodes raft seal' },
  { path: 'overview/replication', title: 'Replication', group: 'Cluster', icon: 'replication', clusterWide: true, load: () => import('../pages/Replication.svelte'), words: 'secondary primary lag' },
  { path: 'namespaces', title: 'Namespaces', group: 'Cluster', icon: 'namespace', needs: ['sys/namespaces', 'list'], load: () => import('../pages/Namespaces.svelte'), words: 'tenants' },
  { path: 'plugins', title: 'Plugins', group: 'Cluster', icon: 'engine', needs: ['sys/plugins/catalog', 'read', 'sudo'], clusterWide: true, load: () => import('../pages/Plugins.svelte'), words: 'catalogue register sha256 pin reload' },
  { path: 'tools', title: 'Tools', group: 'Cluster', icon: 'tools', load: () => import('../pages/Tools.svelte'), words: 'hash random api explorer wrapping lookup' },
]

/** The page of an address; undefined if there is none. */
export function pageAt(parts: string[]): Page | undefined {
  if (parts.length === 1 && parts[0] === '') return pages.find((p) => p.path === 'secrets')
  const of = (p: Page) => p.path.split('/')
  return pages
    .filter((p) => of(p).every((part, i) => part === parts[i]) && (p.deep || of(p).length === parts.length))
    .sort((a, b) => b.path.length - a.path.length)[0]
}
