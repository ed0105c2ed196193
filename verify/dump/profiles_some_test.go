//go:build !slow

package dump_test

// everyProfile: one in so many profiles by default. Of these few, at least as many are told as not.
const (
	everyProfile = 5
	leastTold    = 1
)
