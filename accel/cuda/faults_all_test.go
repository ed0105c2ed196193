//go:build slow

package cuda

// everyFault: all run in the slow suite.
const everyFault = 1
