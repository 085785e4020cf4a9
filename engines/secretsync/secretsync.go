// Package secretsync keeps secrets of KV version 2 mounts right in the places that use them.
//
// What is to be is written down: destinations, and associations of secrets with them. What was done is written down, too:
// for each associated secret a link, with every name that it owns at its destination. The work is what differs between the
// two and what the secrets are now, so that nothing of it is lost when a node stops: a new active node looks at all links
// once and knows what is due. Changes of secrets are heard from the feed.
//
// Start reading at Service, then records.go (what is stored), then sync.go (one secret to one destination). Package work has the queue.
package secretsync
