package engines

import "time"

// Backoff is the time until the next attempt: first after one failure, doubled with each further one, at most longest.
func Backoff(first, longest time.Duration, failures int) time.Duration {
	for d := first; ; d *= 2 {
		if failures--; failures <= 0 || d >= longest {
			return min(d, longest)
		}
	}
}
