//go:build slow

package main

// trainKills is how often a trainer is killed.
const trainKills = 24
