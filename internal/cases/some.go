//go:build !slow

// Package cases says how much of a long table a test tries: by default a part, with the tag slow all of it. Only tests import it.
package cases

// Every: one in so many cases of a table whose cases each run a program, judge a dump or take seconds.
const Every = 6

// All: whether sizes, seeds and numbers of cases are the full ones.
const All = false
