//go:build slow

package main

// everyCase: all cases of the tables that are run in part by default.
const everyCase = 1
