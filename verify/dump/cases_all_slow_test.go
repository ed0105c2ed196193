//go:build slow

package dump_test

// everyCase: all cases of the tables that are run in part by default.
const everyCase = 1
