//go:build slow && learn

package main

// seeds is how many seeds have to learn.
const seeds = 3
