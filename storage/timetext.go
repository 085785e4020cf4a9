package storage

import "time"

// Alphabet has the characters of TimeText, in the order of their bytes.
const Alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// TimeTextBytes is the length of what TimeText returns.
const TimeTextBytes = 8

// TimeText returns a time, to the millisecond, in letters and digits that sort as times do. Records whose keys begin with the time at which
// they are written share pages of the state file, where each random key would have one of its own.
func TimeText(at time.Time) string {
	var text [TimeTextBytes]byte
	ms := max(at.UnixMilli(), 0)
	for i := TimeTextBytes - 1; i >= 0; i-- {
		text[i] = Alphabet[ms%int64(len(Alphabet))]
		ms /= int64(len(Alphabet))
	}
	return string(text[:])
}
