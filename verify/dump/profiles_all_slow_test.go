//go:build slow

package dump_test

// everyProfile: all of them, of which twice as many are told as not.
const (
	everyProfile = 1
	leastTold    = 2
)
