//go:build slow

package cases

// Every: each case.
const Every = 1

// All: full sizes, seeds and numbers of cases.
const All = true
