// Package workqueue schedules the syncing of links and limits the calls to their destinations: Queue runs jobs when they are due, with a
// partition for each destination, so that a slow destination delays no other; RateLimited holds the calls to one destination to a rate
// and stops them while its circuit is open. Both are in memory only: package secretsync queues again what the store says is due.
// Start reading at Queue.
package workqueue

import "time"

// LongestWait is the longest time until the next attempt, whatever Retry-After a destination sends.
const LongestWait = time.Hour
