package audit

// MaxPause is the longest time that a failed device is left alone.
const MaxPause = maxPause
