//go:build !slow

package dump_test

// everyCase: one in so many cases by default, of tables whose cases each run a whole program, or judge a whole dump.
const everyCase = 3
