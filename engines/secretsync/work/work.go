// Package work says when what is to be synced is done, and how much is asked of a destination: a Queue of links, with a lane for each
// destination, and calls that are Paced. Neither knows what is stored, nor what syncing is. Start reading at Queue.
package work

import "time"

// LongestWait bounds how long anything is left alone, whatever a destination says.
const LongestWait = time.Hour
