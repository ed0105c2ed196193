//go:build slow && !learn

package main

// seeds is how many seeds have to learn; make learn asks for three.
const seeds = 1
